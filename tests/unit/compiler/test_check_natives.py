"""A unit has all of its native kernels or none, and verdicts say so of each kernel."""

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit.pef.units import KernelVerdict, Outcome, Unit, describe_verdicts
from rdukit_compiler.backend.check_natives import keep_judged, known_operators, refuse_unknown, spread_refusals
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
    assert shown[EXP.digest()] == "refused: it shares a kernel with a section that is refused: off"
    assert shown[TAN.digest()] == "right: 5 sets of inputs"


def test_a_kernel_of_two_sections_shows_the_worse_verdict() -> None:
    unknown = KernelVerdict(Outcome.NOT_JUDGED, "too large")
    for first, second in ((RIGHT, unknown), (unknown, RIGHT)):
        assert describe_verdicts(UNITS, {FIRST.digest: first, SECOND.digest: second})[COS.digest()] == (
            "not-judged: too large"
        )


def test_what_was_not_judged_is_used_only_of_operators_that_are_known_to_be_right() -> None:
    verdicts = {THIRD.digest: KernelVerdict(Outcome.NOT_JUDGED, "too large"), OTHER.digest: RIGHT}
    assert refuse_unknown(UNITS, verdicts, {"aten.exp.default"}) == verdicts
    refused = refuse_unknown(UNITS, verdicts, frozenset())
    assert refused[OTHER.digest] == RIGHT and refused[THIRD.digest].outcome is Outcome.REFUSED
    assert "aten.exp.default" in refused[THIRD.digest].reason


def test_the_list_of_operators_that_are_known_has_the_common_ones() -> None:
    common = "add.Tensor mul.Tensor mm.default sum.dim_IntList tanh.default relu.default"
    assert {f"aten.{name}" for name in common.split()} <= known_operators()
