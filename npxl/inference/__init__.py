"""What a trained model is used for: scoring texts and continuing them."""

from npxl.inference.evaluation import EvaluationStopped, Score, evaluate, score
from npxl.inference.generation import Generated, generate
from npxl.inference.sliding import evaluate_sliding, score_sliding

__all__ = [
    "EvaluationStopped",
    "Generated",
    "Score",
    "evaluate",
    "evaluate_sliding",
    "generate",
    "score",
    "score_sliding",
]
