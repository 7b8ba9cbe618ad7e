"""Large libraries that every class of the coverage table needs: loaded once, and shared
by the processes that try the classes.
"""

import torch  # noqa: F401
import transformers.modeling_utils  # noqa: F401

import netsor.torch  # noqa: F401
