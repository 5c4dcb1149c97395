"""SAFE_INFERENCE_GEMM: as SAFE_GEMM, for inference, where few rows meet many weights: weights always stream.

Source: compiler reference 7.2.
"""

from rdukit_compiler.heuristics.registry import Decisions, Request, heuristic
from rdukit_compiler.heuristics.safe_gemm import SafeGemm


@heuristic("SAFE_INFERENCE_GEMM")
class SafeInferenceGemm(SafeGemm):
    """Needs a GEMM and an inference compile."""

    def refuse(self, request: Request) -> str | None:
        if not request.inference:
            return "it is for inference, and this compile is for training"
        return super().refuse(request)

    def decide(self, request: Request) -> Decisions:
        return {**super().decide(request), "weights": "streamed", "recompute": False}
