"""Calls of clients that others wrote, on what a served text model has: which work?

``langchain-sambanova``, langchain's ``SambaStudio``, ``litellm``; ``openai``, ``anthropic`` and ``sambanova`` are tried
by the tests. Run it in an environment that has them; it needs nothing of rdukit. Prints a row each; ends with 1 if one
does not work. ::

    pip install langchain-sambanova langchain-community litellm sseclient-py
    python benchmarks/programs/text_clients.py --url http://127.0.0.1:9000 --model llama [--key TOKEN]

Texts of any model will do; its chat template must know tools.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

SCHEMA = {
    "title": "Wait", "description": "Wait.", "type": "object", "properties": {"good": {"type": "boolean"}},
    "required": ["good"], "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "Wait", "description": "Wait.", "parameters": SCHEMA}}]
FORM = {"type": "json_schema", "json_schema": {"name": "Wait", "schema": SCHEMA, "strict": True}}
SAID = [{"role": "user", "content": "hi"}]
Calls = dict[str, Callable[[], bool]]


def langchain_calls(model: str) -> Calls:
    """Return calls of ``ChatSambaNova`` and ``SambaNovaEmbeddings``; key and address are in the environment."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_sambanova import ChatSambaNova, SambaNovaEmbeddings

    chat = partial(ChatSambaNova, model=model, temperature=0.0)
    short, long = chat(max_tokens=8), chat(max_tokens=90)
    fields = chat(max_tokens=8, top_p=0.9, top_k=5, stop=["never"], reasoning_effort="low")
    at_call: Any = {
        "do_sample": False, "n": 1, "seed": 1, "logprobs": True, "top_logprobs": 2, "frequency_penalty": 0.0,
        "presence_penalty": 0.0, "logit_bias": {}, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip

    def tools() -> bool:
        said = long.bind_tools([SCHEMA], tool_choice="any").invoke("x")
        back = [HumanMessage("x"), said, ToolMessage("y", tool_call_id=said.tool_calls[0]["id"])]
        return bool(said.tool_calls[0]["args"]["good"] in {True, False} and short.invoke(back) is not None)

    def streamed_tools() -> bool:
        pieces = list(long.bind_tools([SCHEMA], tool_choice="Wait").stream("x"))
        return bool(sum(pieces[1:], pieces[0]).tool_calls[0]["name"] == "Wait")

    def structured(method: str) -> bool:
        return long.with_structured_output(SCHEMA, method=method).invoke("x")["good"] in {True, False}

    vectors = SambaNovaEmbeddings(model=model)
    return {
        "invoke": lambda: short.invoke("hi").usage_metadata["output_tokens"] > 0,
        "stream": lambda: "".join(piece.content for piece in short.stream("hi")) == short.invoke("hi").content,
        "batch": lambda: len(short.batch(["a", "b"])) == 2,
        "all fields": lambda: fields.invoke("hi", **at_call) is not None,
        "tools, answer": tools, "tools, streamed": streamed_tools,
        "tools, auto": lambda: short.bind_tools([SCHEMA]).invoke("x") is not None,
        "structured, json_schema": lambda: structured("json_schema"),
        "structured, function_calling": lambda: structured("function_calling"),
        "json_object": lambda: long.bind(response_format={"type": "json_object"}).invoke("x").content[0] == "{",
        "embeddings": lambda: len(vectors.embed_documents(["a", "b"])) == 2 and len(vectors.embed_query("a")) > 0,
    }  # fmt: skip


def studio_calls(url: str, model: str, key: str) -> Calls:
    """Return calls of langchain's ``SambaStudio``, by each of its three APIs: a stream says what an answer does."""
    from langchain_community.llms.sambanova import SambaStudio

    def agrees(path: str, **more: Any) -> bool:
        def client() -> Any:  # it changes its arguments
            asked = {"model": model, "max_tokens": 8, "temperature": 0.7, "top_k": 5, "do_sample": False, **more}
            return SambaStudio(sambastudio_url=url + path, sambastudio_api_key=key, model_kwargs=asked)

        return bool(client().invoke("hi") == "".join(client().stream("hi")))

    generic: Any = {"repetition_penalty": 1.1, "stop_sequences": ["never"]}
    calls: Calls = {"chat completions": lambda: agrees("/v1/chat/completions")}
    for path in ("/api/v2/predict/generic", "/api/predict/generic"):
        for processed in (True, False):
            more = {**generic, "process_prompt": processed}
            name = f"{path}, {'chat' if processed else 'prompt'}"
            calls[name] = partial(agrees, f"{path}/project/{model}", **more)
    return calls


def litellm_calls(url: str, model: str, key: str) -> Calls:
    """Return calls of ``litellm`` by three of its providers."""
    import litellm

    litellm.suppress_debug_info = True
    at: Any = {"api_base": f"{url}/v1", "api_key": key}
    ask = partial(litellm.completion, model=f"sambanova/{model}", messages=SAID, **at)
    claude = partial(litellm.completion, model=f"anthropic/{model}", messages=SAID, api_base=url, api_key=key)
    openai: Any = {"model": f"openai/{model}", **at}
    allowed = ["tools", "tool_choice", "reasoning_effort"]

    def call_of(answer: Any) -> bool:
        return bool(answer.choices[0].message.tool_calls[0].function.name == "Wait")

    more: Any = {"top_k": 3, "do_sample": False, "ignore_eos": True, "chat_template_kwargs": {"a": 1}}
    return {
        "completion": lambda: ask(max_tokens=8, temperature=0, stop=["never"]).usage.completion_tokens > 0,
        "stream": lambda: len(list(ask(max_tokens=8, stream=True, stream_options={"include_usage": True}))) > 1,
        "tools": lambda: call_of(
            ask(max_tokens=90, tools=TOOLS, tool_choice="required", allowed_openai_params=allowed)
        ),
        "json_schema": lambda: len(json.loads(ask(max_tokens=90, response_format=FORM).choices[0].message.content)) > 0,
        "the vendor's fields": lambda: (
            ask(max_tokens=8, extra_body=more, reasoning_effort="low", allowed_openai_params=allowed) is not None
        ),
        "embedding": lambda: len(litellm.embedding(model=f"sambanova/{model}", input=["a", "b"], **at).data) == 2,
        "n, logprobs": lambda: (
            len(litellm.completion(messages=SAID, n=2, logprobs=True, seed=1, max_tokens=4, **openai).choices) == 2
        ),
        "text": lambda: litellm.text_completion(model=f"text-completion-openai/{model}", prompt="hi", **at) is not None,
        "responses": lambda: litellm.responses(input="hi", max_output_tokens=16, **openai).usage.output_tokens > 0,
        "responses, streamed": lambda: len(list(litellm.responses(input="hi", stream=True, **openai))) > 3,
        "messages": lambda: claude(max_tokens=8, stop=["never"]).usage.completion_tokens > 0,
        "messages, streamed": lambda: len(list(claude(max_tokens=8, stream=True))) > 1,
        "messages, tools": lambda: call_of(claude(max_tokens=90, tools=TOOLS, tool_choice="required")),
    }


def why_not(call: Callable[[], bool]) -> str:
    """Return why a call does not work; empty if it does."""
    try:
        return "" if call() else "another answer than expected"
    except Exception as error:  # noqa: BLE001 whatever a client of others raises
        return f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description="Which calls of others' clients does a served text model answer?")
    parser.add_argument("--url", default="http://127.0.0.1:9000")
    parser.add_argument("--model", default="llama")
    parser.add_argument("--key", default="none", help="Token of the box.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ |= {
        "SAMBANOVA_API_KEY": options.key, "SAMBANOVA_API_BASE": f"{options.url}/v1", "NO_PROXY": "127.0.0.1,localhost",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    groups = {
        "langchain-sambanova": langchain_calls(options.model),
        "SambaStudio": studio_calls(options.url, options.model, options.key),
        "litellm": litellm_calls(options.url, options.model, options.key),
    }
    failed = total = 0
    for group, calls in groups.items():
        for name, call in calls.items():
            reason = why_not(call)
            failed, total = failed + bool(reason), total + 1
            print(f"{group:20} {name:40} {reason or 'works'}", flush=True)
    print(f"{total - failed} of {total} work")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
