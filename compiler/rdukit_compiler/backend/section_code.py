"""From the C++ that inductor writes for a graph to one namespace of a section library. Text in, text out: pure.

Inductor's wrapper is a whole library with a model container, constants and an interface of thirty functions; it takes
several seconds to compile, whatever the graph. A section needs of it only the body that calls kernels and operators.
The forms that this module looks for are inductor's of the pinned torch; anything else is refused, and then the section
runs portably.
"""

import re
from collections.abc import Mapping
from typing import Final

_BODY: Final = re.compile(
    r"void AOTInductorModel::run_impl\(.*?\) \{\n(?P<body>.*)\n\} // AOTInductorModel::run_impl", re.DOTALL
)
#: Cached constants of torch's C interface, one a line.
_CACHED: Final = re.compile(r"^CACHE_TORCH_\w+\(\w+\);$", re.MULTILINE)
#: What the container's class needs and a section does not.
_DROPPED: Final = re.compile(
    r"^\s*(__check_inputs_outputs\(.*\);|if \(_check_aoti_runtime_check_inputs_env\(\)\) \{.*\}"
    r"|\[\[maybe_unused\]\] auto& kernels = .*;|inputs\.clear\(\);)\s*$\n?",
    re.MULTILINE,
)
#: In a body these reach for what a section does not have.
_FOREIGN: Final = ("proxy_executor", "constants_", "this->", "kernels.", "stream")
#: How calls of our own operators begin, and the header that has them.
_OUR_CODE: Final[Mapping[str, str]] = {
    "aoti_torch_cpu_rdukit_product": "products",
    "aoti_torch_cpu_rdukit_batch_product": "products",
    "aoti_torch_cpu_rdukit_packed_": "packed_linear",
    "aoti_torch_cpu_rdukit_int8_linear": "int8_linear",
    "aoti_torch_cpu_rdukit_attention": "attention",
    "aoti_torch_cpu_rdukit_small_convolution": "small_convolution",
    "aoti_torch_cpu_rdukit_convolution": "convolution",
    "aoti_torch_cpu_lstm_layer": "lstm",
}
_EXTERNAL_KERNEL: Final = re.compile(r'extern "C"\s+void\s+(?=\w*\()')
#: Inductor splits loops for as many threads as the machine has; a lease may have fewer.
_THREADS: Final = re.compile(r"num_threads\((\d+)\)")
#: Calls of torch's whose order of additions depends on the threads, and ours (``section.h``).
_UNORDERED: Final = ("aoti_torch_index_put_out(", "rdukit::index_put_in_order(")
#: Inductor's call that rounds floats to bf16, and ours (``section.h``).
_NARROWING: Final = ("at::vec::convert<at::BFloat16,1,float,2>(", "rdukit::narrow_lanes(")


class UnusualCode(ValueError):
    """Inductor wrote code in a form that is not known here."""


def section_namespace(name: str, wrapper: str, kernels: str) -> str:
    """The code of one section as ``namespace name``, whose function ``run`` takes inputs and outputs.

    Args:
        wrapper: inductor's wrapper. kernels: inductor's kernels.
    Raises:
        UnusualCode: the wrapper has another form than expected, or needs more than tensors.
    """
    found = _BODY.search(wrapper)
    if found is None:
        raise UnusualCode("inductor's wrapper has no run_impl")
    body = _DROPPED.sub("", found["body"]).replace("this->device_idx_", "0").replace(*_UNORDERED)
    foreign = next((word for word in _FOREIGN if word in body), None)
    if foreign is not None:
        raise UnusualCode(f"the wrapper uses {foreign!r}")
    own = "\n".join(line for line in kernels.splitlines() if not line.startswith("#include"))
    own = _EXTERNAL_KERNEL.sub("static void ", own)
    own = _THREADS.sub(r"num_threads(rdukit::threads_up_to(\1))", own)
    own = own.replace(*_NARROWING)
    cached = "\n".join(_CACHED.findall(wrapper))
    return (
        f"namespace {name} {{\n{cached}\n{own}\n"
        "static void run(AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {\n"
        f"{body}\n}}\n}}  // namespace {name}\n"
    )


def library_source(sections: Mapping[str, str], definitions: Mapping[str, int]) -> str:
    """A translation unit of several sections: their code by the name of the function that each exports.

    ``definitions``: macros of our own operators' code, and their values.
    """
    parts = ['#include "section.h"']
    headers = dict.fromkeys(
        header for call, header in _OUR_CODE.items() if any(call in code for code in sections.values())
    )
    parts += [f"#define {name} {number}" for name, number in definitions.items() if headers]
    parts += [f'#include "{header}.h"' for header in headers]
    for number, (symbol, code) in enumerate(sections.items()):
        parts += [code.replace("namespace section ", f"namespace section{number} ", 1)]
        parts += [f"RDUKIT_SECTION({symbol}, section{number}::run)"]
    return "\n".join(parts) + "\n"
