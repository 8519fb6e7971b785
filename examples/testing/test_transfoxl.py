"""npxl's checks on Hugging Face's TransfoXL: pytest examples/testing/test_transfoxl.py."""

from transfoxl_deviations import expected_failures, small_model

from npxl.testing import parametrize, transfoxl

options = dict(n_layer=2, cutoffs=[2, 5], same_length=True, dropout=0.2)
model = transfoxl(small_model(**options))


@parametrize(model, expected_failures=expected_failures(**options), max_examples=10)
def test_transfoxl(check, case):
    check(case)
