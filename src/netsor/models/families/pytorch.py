"""PyTorch's TransformerEncoderLayer, alone or copied into a TransformerEncoder.

All its weights are uniform. The packed matrix of queries, keys and values is drawn by Xavier's rule for one matrix
with 3n rows, which makes entries of variance 1/2n; all other matrices and the biases of the perceptron have variance
1/(3 fan-in). TransformerEncoder copies the layer that it is given, weights and all, so that every block begins with
the same draw.
"""

from __future__ import annotations

from .._transformer import Transformer


def pytorch_encoder(
    d_model: int,
    nhead: int,
    dim_feedforward: int = 2048,
    *,
    num_layers: int = 1,
    activation: str = "relu",
    layer_norm_eps: float = 1e-5,
    norm_first: bool = False,
    bias: bool = True,
    norm: bool = False,
    causal: bool = False,
) -> Transformer:
    """The encoder that these arguments of PyTorch make.

    Its inputs are tokens with unit Gaussian embeddings, which is what `torch.nn.Embedding` draws; `replace` changes
    that.

    Parameters
    ----------
    d_model, nhead : int
        Width and heads, as of `torch.nn.TransformerEncoderLayer`.
    dim_feedforward : int
        Width between the two matrices of the perceptron.
    num_layers : int
        As of `torch.nn.TransformerEncoder`.
    activation : str
        "relu" or "gelu".
    layer_norm_eps : float
        Of all norms.
    norm_first : bool
        Whether norms come before the branches.
    bias : bool
        Whether linear layers have biases.
    norm : bool
        Whether a LayerNorm follows the last block.
    causal : bool
        For masked attention, which PyTorch is told when it is called.

    Returns
    -------
    Transformer
        As PyTorch draws it: uniform weights, and layers that begin as copies of one.

    Examples
    --------
    >>> model = ns.models.pytorch_encoder(512, 8, num_layers=6)
    >>> model.shared, model.distribution
    (True, 'uniform')
    """
    if activation not in ("relu", "gelu"):
        raise ValueError(f"activation={activation!r} must be 'relu' or 'gelu'")
    for name, value in (("d_model", d_model), ("nhead", nhead), ("dim_feedforward", dim_feedforward)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a positive integer")
    if d_model % nhead:
        raise ValueError(f"d_model={d_model} must be a multiple of nhead={nhead}")
    packed, plain, last = (2 * d_model) ** -0.5, (3 * d_model) ** -0.5, (3 * dim_feedforward) ** -0.5
    return Transformer(
        name="pytorch-encoder",
        family="pytorch",
        layers=num_layers,
        width=d_model,
        heads=nhead,
        hidden=dim_feedforward,
        positions="none",
        order="pre" if norm_first else "post",
        eps=layer_norm_eps,
        final_norm=norm,
        activation=activation,
        causal=causal,
        shared=num_layers > 1,
        std_q=packed,
        std_k=packed,
        std_v=packed,
        std_o=plain,
        std_in=plain,
        std_out=last,
        std_embedding=1.0,
        std_position=0.0,
        bias_in=plain if bias else 0.0,
        bias_out=last if bias else 0.0,
        distribution="uniform",
    )
