"""Recurrent layers of torch (`RNN`, `LSTM`, `GRU`) by their plain operations.

While a module is captured, torch's fused kernels are replaced by the formulas of their
documentation: two matrices for each step, and functions that act on each coordinate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from ..reader._graph import UnsupportedError

State = Any  # a hidden state, or the hidden state and the cell of an LSTM
Cell = Callable[..., State]


def _rnn_cell(activation: Callable[[Any], Any]) -> Cell:
    """h' = φ(W x + b + U h + c)."""

    def cell(x: Any, h: Any, w: Any, u: Any, b: Any = None, c: Any = None) -> Any:
        return activation(linear(x, w, b) + linear(h, u, c))

    return cell


def lstm_cell(x: Any, state: Any, w: Any, u: Any, b: Any = None, c: Any = None) -> Any:
    """The next hidden state and cell of an LSTM.

    With the gates i, f, o and the candidate g: c' = f c + i tanh g, h' = o tanh c'.
    """
    hidden, memory = state
    gates = linear(x, w, b) + linear(hidden, u, c)
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
    written = input_gate.sigmoid() * candidate.tanh()
    memory = forget_gate.sigmoid() * memory + written
    return output_gate.sigmoid() * memory.tanh(), memory


def gru_cell(x: Any, h: Any, w: Any, u: Any, b: Any = None, c: Any = None) -> Any:
    """The next hidden state of a GRU.

    With the gates r and z: n = tanh(n_x + r n_h), h' = n + z (h − n).
    """
    reset_x, update_x, new_x = linear(x, w, b).chunk(3, dim=-1)
    reset_h, update_h, new_h = linear(h, u, c).chunk(3, dim=-1)
    reset_gate = (reset_x + reset_h).sigmoid()
    update_gate = (update_x + update_h).sigmoid()
    new = (new_x + reset_gate * new_h).tanh()
    return new + update_gate * (h - new)


tanh_cell, relu_cell = _rnn_cell(torch.tanh), _rnn_cell(torch.relu)


def _layer(cell: Cell) -> Callable[..., Any]:
    """A recurrent network, as torch calls its kernel, of one kind of cell."""
    is_lstm = cell is lstm_cell

    def network(
        x: Any,
        states: Any,
        parameters: Any,
        has_biases: Any,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> Any:
        """The outputs (steps, batch, hidden) and the last state of each run.

        The arguments are those of `torch.lstm`. A run is one layer in one direction:
        `states` and `parameters` are those of its runs, one after the other.
        """
        if not isinstance(has_biases, bool):
            raise UnsupportedError(
                "a recurrent layer of a PackedSequence: pass a padded tensor"
            )
        starts = list(zip(*states, strict=True)) if is_lstm else list(states)
        directions = 2 if bidirectional else 1
        runs = layers * directions
        count = len(parameters) // runs
        weights = [parameters[k * count : (k + 1) * count] for k in range(runs)]
        outputs = x.transpose(0, 1) if batch_first else x
        ends: list[State] = []
        for first in range(0, runs, directions):
            of_layer = slice(first, first + directions)
            outputs, last_states = _run_layer(
                cell, outputs, starts[of_layer], weights[of_layer], has_biases
            )
            ends += last_states
        y = outputs.transpose(0, 1) if batch_first else outputs
        if not is_lstm:
            return y, torch.stack(ends)
        hidden, memory = zip(*ends, strict=True)
        return y, torch.stack(hidden), torch.stack(memory)

    return network


def _run_layer(
    cell: Cell,
    x: Any,
    starts: Sequence[State],
    weights: Sequence[Sequence[Any]],
    has_biases: bool,
) -> tuple[Any, list[State]]:
    """The hidden states of one layer, and its last states.

    `starts` and `weights` are those of the steps forwards and, of a layer in both
    directions, of the steps backwards; their hidden states are joined.
    """
    y, end = _run(cell, x, starts[0], weights[0], has_biases)
    if len(starts) == 1:
        return y, [end]
    backwards, other_end = _run(cell, x.flip(0), starts[1], weights[1], has_biases)
    return torch.cat([y, backwards.flip(0)], dim=-1), [end, other_end]


def _run(
    cell: Cell, steps: Any, state: State, weights: Sequence[Any], has_biases: bool
) -> tuple[Any, State]:
    """The hidden states of all steps, and the last state.

    `weights` are the two matrices, the two biases, and the projection of an LSTM.
    """
    of_cell = weights[: 4 if has_biases else 2]
    projection = weights[len(of_cell) :]
    hidden_states = []
    for x in steps.unbind(0):
        state = cell(x, state, *of_cell)
        if projection:
            hidden, memory = state
            state = linear(hidden, projection[0]), memory
        hidden_states.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(hidden_states), state


# kernels of torch, and what is computed instead
PLAIN_RECURRENCES = {
    torch.lstm: _layer(lstm_cell),
    torch.gru: _layer(gru_cell),
    torch.rnn_tanh: _layer(tanh_cell),
    torch.rnn_relu: _layer(relu_cell),
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: tanh_cell,
    torch.rnn_relu_cell: relu_cell,
}
