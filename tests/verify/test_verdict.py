import msgspec

from swarmkv.verify import Reject, Verdict


def test_feedback_has_one_line_a_reason_with_its_path() -> None:
    verdict: Verdict[int] = Verdict(
        accepted=False,
        reasons=(
            Reject("Expected `int`, got `str`", "$.items[2].n"),
            Reject("Too\nlong.", ""),
            Reject("Why?", "$"),
        ),
    )
    assert verdict.feedback() == (
        "Your answer was rejected.\n"
        "- $.items[2].n: Expected `int`, got `str`.\n"
        "- Too long.\n"
        "- Why?\n"
        "Answer again with the corrected JSON only."
    )


def test_feedback_is_bounded() -> None:
    reasons = tuple(Reject("m" * 10_000, "$." + "p" * 10_000) for _ in range(100))
    assert len(Verdict(accepted=False, reasons=reasons).feedback()) < 5_000


def test_an_acceptance_has_no_feedback() -> None:
    assert Verdict(accepted=True, value=1).feedback() == ""


def test_a_verdict_travels() -> None:
    verdict = Verdict(accepted=True, value=[1, 2], reasons=())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(verdict), type=Verdict[list[int]]) == verdict
