"""What a trained model is used for: scoring texts and continuing them."""

from npxl.inference.evaluation import EvaluationStopped, Score, evaluate, score
from npxl.inference.generation import Generated, generate

__all__ = ["EvaluationStopped", "Generated", "Score", "evaluate", "generate", "score"]
