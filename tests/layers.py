"""Steps of random programs that are layers of transformers, for `Builder`."""

from __future__ import annotations

import netsor as ns


class Layers:
    """Each makes vectors or scalars from the values that the builder has."""

    def layer(self):
        """Attention with some of its options."""
        x = self.vector()
        x = x if x.shape else x[None]
        heads, d, tokens = 2, 2 * self.choose(self.widths), x.shape[-1]
        options = {
            "mask": "causal",
            "groups": 1,
            "window": 2,
            "rotary": ns.nn.Rotary(10.0, 1.0),
            "qk_norm": lambda u: ns.rms_norm(u, 0.1),
            "softcap": 2.0,
            "bias": self.choose(
                [
                    ns.nn.alibi(heads, tokens),
                    ns.nn.relative_bias(heads, tokens, std=0.5),
                ]
            ),
            "scaling": 1.5,
            "sigma_b": 0.3,
            "sigma_q": 2.0,
        }
        if x.ndim > 1:
            del options["bias"]
        chosen = {k: v for k, v in options.items() if self.often(0.25)}
        made = ns.nn.attend(
            x, heads, self.turned(d) if "rotary" in chosen else d, **chosen
        )
        self.scalars.append(self.choose([made.scores, made.weights]))
        return made.output

    def perceptron(self):
        f, gate = self.choose([ns.silu, ns.gelu_tanh, ns.relu]), self.often(0.7)
        x, hidden = self.vector(), self.choose(self.widths)
        return ns.nn.mlp(
            x,
            hidden,
            activation=f,
            gate=gate,
            sigma_out=0.7,
            sigma_b=self.choose([0.0, 0.3]),
        )

    def embedding(self):
        ids = self.rng.integers(0, 3, self.choose([1, 2, 3]))
        return ns.nn.embedding(
            ids, self.choose(self.widths), position_std=self.choose([None, 0.5])
        )

    def shared(self):
        """One layer, twice: the second time on what it made."""
        x = self.vector()
        norm = self.choose([lambda u: ns.rms_norm(u, 0.1), lambda u: u])
        act = ns.nn.shared(
            lambda u: (
                ns.nn.mlp(norm(u), x.width, activation=ns.tanh, sigma_b=0.3) + 0.5 * u
            )
        )
        return act(act(x))

    def words(self):
        """Logits of a few words, as many as keep the array small."""
        return ns.nn.logits(self.vector(), 2, sigma=abs(self.number()))
