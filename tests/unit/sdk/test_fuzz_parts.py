"""The fuzzer's own parts: programs from seeds, their text, how they are made smaller, and what counts as wrong."""

import torch

from fuzzing.generate import generate
from fuzzing.judge import expected_results, find_differences, find_special_fault
from fuzzing.programs import Declared, Program, Step, build_module, class_text, draw_inputs, without_unused
from fuzzing.shrink import shrink
from support import shows

pytestmark = shows("project")


def program(*steps: Step, outputs: tuple[str, ...]) -> Program:
    inputs = (Declared("x1", "torch.randn(4, 6)"), Declared("x2", "torch.randn(4, 6)"))
    members = (Declared("self.p1", "self.p1 = nn.Parameter(torch.randn(4, 6))"),)
    return Program(3, inputs, members, steps, outputs)


LONG = program(
    Step(("v1",), "x1 * self.p1"),
    Step(("v2",), "v1.tanh()", "with torch.no_grad():"),
    Step((), "v2.add_(1)", "with torch.no_grad():"),
    Step(("v3", "v4"), "v2.max(-1)"),
    Step(("v5",), "v1 + x2"),
    Step(("v6",), "v5.softmax(-1)"),
    outputs=("v6", "v3"),
)


def test_a_seed_gives_the_same_program_each_time_and_programs_differ() -> None:
    first = [generate(seed) for seed in range(20)]
    assert first == [generate(seed) for seed in range(20)]
    assert len({text.to_json() for text in first}) == 20


def test_a_program_survives_json() -> None:
    for seed in range(20):
        made = generate(seed)
        assert Program.from_json(made.to_json()) == made


def test_the_text_of_a_program_is_the_module_that_a_developer_would_write() -> None:
    assert class_text(LONG) == (
        "class Module(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.p1 = nn.Parameter(torch.randn(4, 6))\n"
        "\n"
        "    def forward(self, x1, x2):\n"
        "        v1 = x1 * self.p1\n"
        "        with torch.no_grad():\n"
        "            v2 = v1.tanh()\n"
        "            v2.add_(1)\n"
        "        v3, v4 = v2.max(-1)\n"
        "        v5 = v1 + x2\n"
        "        v6 = v5.softmax(-1)\n"
        "        return v6, v3\n"
    )


def test_what_nothing_reads_is_left_out_and_writes_stay() -> None:
    made = without_unused(program(*LONG.steps, outputs=("v3",)))
    assert [step.text for step in made.steps] == ["x1 * self.p1", "v1.tanh()", "v2.add_(1)", "v2.max(-1)"]
    assert [item.name for item in made.inputs] == ["x1"]


def test_a_failing_program_shrinks_to_the_step_that_fails() -> None:
    def fails(candidate: Program) -> bool:
        return any("softmax" in step.text for step in candidate.steps) and build_and_run(candidate)

    assert class_text(shrink(LONG, fails)) == (
        "class Module(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "\n"
        "    def forward(self, x1):\n"
        "        v6 = x1.softmax(-1)\n"
        "        return v6,\n"
    )


def build_and_run(candidate: Program) -> bool:
    """Whether torch takes the program."""
    try:
        build_module(candidate)(**draw_inputs(candidate))
    except (RuntimeError, NameError, IndexError):
        return False
    return True


def test_rounding_is_no_difference_and_a_wrong_gradient_is_one() -> None:
    made = program(*LONG.steps, outputs=("v6", "v3"))
    expected = expected_results(made)
    rounded = {n: t * (1 + 2**-23) if t is not None and t.is_floating_point() else t for n, t in expected.items()}
    assert find_differences(made, expected, rounded, "f32") == []
    gradient = expected["step 1 gradient p1"]
    assert gradient is not None
    wrong = {**expected, "step 1 gradient p1": gradient * torch.tensor([1.1] + 5 * [1.0])}
    (difference,) = find_differences(made, expected, wrong, "f32")
    assert difference.name == "step 1 gradient p1"
    assert find_differences(made, expected, {**expected, "step 1 gradient p1": None}, "bf16") != []


def test_of_a_gradient_at_nan_either_answer_of_torch_is_right() -> None:
    made = Program(
        3, (Declared("x1", "torch.randn(3)"),), (Declared("self.p1", "self.p1 = nn.Parameter(torch.zeros(3))"),),
        (Step(("v1",), "x1 + self.p1"), Step(("v2",), "F.elu(v1)")), ("v2",), "nan",
    )  # fmt: skip
    expected = expected_results(made)
    gradient, at_nan = expected["step 1 gradient p1"], draw_inputs(made)["x1"].isnan()
    assert gradient is not None and at_nan.any() and not gradient.isnan().any()

    def fault_with(value: float) -> str | None:
        found = expected | {"step 1 gradient p1": torch.where(at_nan, value, gradient)}
        return find_special_fault(made, expected, found, "f32")

    assert fault_with(float("nan")) is None
    assert "gradient p1" in str(fault_with(float("inf")))


def test_of_special_numbers_in_bf16_torchs_answer_in_bf16_is_right_too() -> None:
    step = Step(("v1",), 'x1 * (float("inf") if x1.dtype == torch.bfloat16 else 1.0)')
    made = Program(3, (Declared("x1", "torch.rand(3)"),), (), (step,), ("v1",), "nan")
    expected = expected_results(made)
    found = {name: value * float("inf") for name, value in expected.items() if value is not None}
    assert find_special_fault(made, expected, found, "bf16") is None
    assert find_special_fault(made, expected, found, "f32") is not None
    assert find_special_fault(made, expected, {name: -value for name, value in found.items()}, "bf16") is not None
