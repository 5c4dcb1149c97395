"""A unit has all of its native kernels or none, and verdicts say so of each kernel."""

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.units import KernelVerdict, Outcome, Unit, describe_verdicts
from rdukit_compiler.backend.check_natives import keep_judged, spread_refusals
from support import shows

pytestmark = shows("native", "native-kernels")


def kernel(op: str) -> KernelGraph:
    return KernelGraph((packed_spec("x", "float32", (4,)),), (KernelNode("v0", op, (Ref("x"),)),), ("v0",))


SIN, COS, EXP, TAN = (kernel(f"aten.{word}.default") for word in ("sin", "cos", "exp", "tan"))
#: Two sections that share a backward, a third that shares the second's forward, and one of its own.
FIRST, SECOND = Unit(SIN, COS, (("input", 0),)), Unit(EXP, COS, (("input", 0),))
THIRD, OTHER = Unit(EXP), Unit(TAN)
UNITS = {unit.digest: unit for unit in (FIRST, SECOND, THIRD, OTHER)}
LIBRARIES = {digest: b"library" for unit in UNITS.values() for digest in unit.kernel_digests}
RIGHT = KernelVerdict(Outcome.RIGHT, "", 5)


def test_what_is_dropped_with_a_partner_shows_the_refusal() -> None:
    verdicts = {unit.digest: RIGHT for unit in UNITS.values()} | {FIRST.digest: KernelVerdict(Outcome.REFUSED, "off")}
    spread = spread_refusals(UNITS, LIBRARIES, verdicts)
    assert list(keep_judged(UNITS, LIBRARIES, spread)) == [TAN.digest()]
    shown = describe_verdicts(UNITS, spread)
    assert shown[SIN.digest()] == shown[COS.digest()] == "refused: off"
    assert shown[EXP.digest()] == "refused: a section with the same kernel runs portably: off"
    assert shown[TAN.digest()] == "right: 5 sets of inputs"


def test_a_kernel_of_two_sections_shows_the_worse_verdict() -> None:
    unknown = KernelVerdict(Outcome.NOT_JUDGED, "too large")
    for first, second in ((RIGHT, unknown), (unknown, RIGHT)):
        assert describe_verdicts(UNITS, {FIRST.digest: first, SECOND.digest: second})[COS.digest()] == (
            "not-judged: too large"
        )


def test_what_was_not_judged_is_not_used_and_says_so() -> None:
    unknown = KernelVerdict(Outcome.NOT_JUDGED, "too large")
    verdicts = {unit.digest: RIGHT for unit in UNITS.values()} | {OTHER.digest: unknown}
    assert list(keep_judged(UNITS, LIBRARIES, spread_refusals(UNITS, LIBRARIES, verdicts))) == [
        digest for digest in LIBRARIES if digest != TAN.digest()
    ]
    assert describe_verdicts(UNITS, verdicts)[TAN.digest()] == "not-judged: too large"
    assert unknown.complaint == "its native kernels could not be compared: too large"
