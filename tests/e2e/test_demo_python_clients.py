"""Python clients against `slotstream serve` on the demo model: what a user of each package would write first."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama

from tests.e2e.conftest import DemoServer
from tests.serve.conftest import PATIENCE_S

MODEL = "demo"
STORY: Any = [{"role": "user", "content": "Tell me a short story about a fox."}]
QUESTION = "What is the weather in Bern?"
ASKED: Any = [{"role": "user", "content": QUESTION}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
RESULT = "Sunny, 21 C"
GREEDY = {"temperature": 0}


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"{RESULT} in {city}"


@pytest.fixture(scope="module")
def openai_client(demo_server: DemoServer) -> Iterator[openai.OpenAI]:
    with openai.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S) as http:
        yield openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="unused", http_client=http, max_retries=0)


@pytest.fixture(scope="module")
def anthropic_client(demo_server: DemoServer) -> Iterator[anthropic.Anthropic]:
    http = anthropic.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
    with anthropic.Anthropic(base_url=demo_server.url, api_key="unused", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture(scope="module")
def ollama_client(demo_server: DemoServer) -> Iterator[ollama.Client]:
    client = ollama.Client(demo_server.url, trust_env=False, timeout=PATIENCE_S)
    yield client
    client._client.close()


def test_openai_chat_is_the_same_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=16, temperature=0)
    chunks = list(
        openai_client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=16, temperature=0, stream=True)
    )
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16


def test_openai_chat_calls_a_tool_and_reads_its_result(openai_client: openai.OpenAI) -> None:
    completions = openai_client.chat.completions
    with completions.stream(model=MODEL, messages=ASKED, tools=[FUNCTION], temperature=0) as stream:
        streamed = stream.until_done().get_final_completion().choices[0].message
    turn = completions.create(model=MODEL, messages=ASKED, tools=[FUNCTION], temperature=0).choices[0].message
    (call,) = turn.tool_calls or []
    assert call.type == "function"
    assert [made.function.arguments for made in streamed.tool_calls or []] == [call.function.arguments]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    history: Any = [*ASKED, turn.model_dump(exclude_none=True), result]
    answer = completions.create(model=MODEL, messages=history, tools=[FUNCTION], max_tokens=48, temperature=0).choices[
        0
    ]
    assert answer.message.content
    assert not answer.message.tool_calls


def test_openai_responses_are_the_same_whole_and_streamed(openai_client: openai.OpenAI) -> None:
    whole = openai_client.responses.create(model=MODEL, input=STORY, max_output_tokens=16, temperature=0)
    events = list(
        openai_client.responses.create(model=MODEL, input=STORY, max_output_tokens=16, temperature=0, stream=True)
    )
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert whole.output_text
    assert "".join(deltas) == whole.output_text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    assert whole.status == "incomplete"


def test_openai_responses_call_a_tool_and_read_its_result(openai_client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    with openai_client.responses.stream(model=MODEL, input=ASKED, tools=tools, temperature=0) as stream:
        first = stream.until_done().get_final_response()
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    history: Any = [*ASKED, *[item.to_dict(exclude_none=True) for item in first.output], output]
    last = openai_client.responses.create(model=MODEL, input=history, tools=tools, max_output_tokens=48, temperature=0)
    assert last.output_text


def test_anthropic_messages_are_the_same_whole_and_streamed(anthropic_client: anthropic.Anthropic) -> None:
    request: Any = {"model": MODEL, "messages": STORY, "max_tokens": 16, "extra_body": GREEDY}
    whole = anthropic_client.messages.create(**request)
    with anthropic_client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert block.text == text
    assert final.content[0].to_dict()["text"] == text
    assert (whole.stop_reason, final.stop_reason) == ("max_tokens", "max_tokens")
    count = anthropic_client.messages.count_tokens(model=MODEL, messages=STORY)
    assert count.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_anthropic_messages_use_a_tool_and_read_its_result(anthropic_client: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": CITY}]
    first = anthropic_client.messages.create(model=MODEL, max_tokens=64, messages=ASKED, tools=tools, extra_body=GREEDY)
    assert first.stop_reason == "tool_use"
    (used,) = [block for block in first.content if block.type == "tool_use"]
    assert (used.name, used.input) == ("weather", {"city": "Bern"})
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": RESULT}]}
    history: Any = [*ASKED, {"role": "assistant", "content": first.content}, result]
    last = anthropic_client.messages.create(
        model=MODEL, max_tokens=48, messages=history, tools=tools, extra_body=GREEDY
    )
    assert last.content[0].type == "text"


def test_ollama_lists_shows_and_runs_the_model(ollama_client: ollama.Client) -> None:
    (listed,) = ollama_client.list().models
    (running,) = ollama_client.ps().models
    assert listed.model == running.model == MODEL
    assert (listed.size or 0) > 1_000_000
    shown = ollama_client.show(MODEL)
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert (shown.modelinfo or {})["qwen4_exp.context_length"] == 8192


def test_ollama_chat_and_generate_are_the_same_whole_and_streamed(ollama_client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 16}
    chat = ollama_client.chat(MODEL, messages=STORY, options=options)
    lines = list(ollama_client.chat(MODEL, messages=STORY, options=options, stream=True))
    assert chat.message.content
    assert "".join(line.message.content or "" for line in lines) == chat.message.content
    assert (chat.done_reason, chat.eval_count) == ("length", 16)
    prompt = STORY[0]["content"]
    generated = ollama_client.generate(MODEL, prompt, options=options)
    pieces = [line.response or "" for line in ollama_client.generate(MODEL, prompt, options=options, stream=True)]
    assert "".join(pieces) == generated.response == chat.message.content


def test_ollama_calls_a_python_function_and_reads_its_result(ollama_client: ollama.Client) -> None:
    first = ollama_client.chat(MODEL, messages=ASKED, tools=[weather], options={"temperature": 0})
    (call,) = first.message.tool_calls or []
    assert (call.function.name, dict(call.function.arguments)) == ("weather", {"city": "Bern"})
    history = [*ASKED, first.message, {"role": "tool", "tool_name": "weather", "content": weather("Bern")}]
    last = ollama_client.chat(MODEL, messages=history, tools=[weather], options={"temperature": 0, "num_predict": 48})
    assert last.message.content


def test_langchain_chats_streams_and_calls_a_tool(demo_server: DemoServer) -> None:
    model = ChatOllama(
        model=MODEL,
        base_url=demo_server.url,
        temperature=0,
        num_predict=48,
        validate_model_on_init=True,
        client_kwargs={"trust_env": False, "timeout": PATIENCE_S},
    )
    text = model.invoke(STORY[0]["content"]).content
    assert text
    assert "".join(str(chunk.content) for chunk in model.stream(STORY[0]["content"])) == text
    asking = model.bind_tools([tool(weather)])
    turn = asking.invoke(QUESTION)
    (call,) = turn.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Bern"})
    result = ToolMessage(content=RESULT, tool_call_id=call["id"] or "")
    assert asking.invoke([HumanMessage(QUESTION), turn, result]).content
    model._client._client.close()


def test_the_server_is_still_itself(demo_server: DemoServer) -> None:
    with httpx.Client(base_url=demo_server.url, trust_env=False, timeout=PATIENCE_S) as client:
        status = client.get("/slotstream/status").json()
        metrics = client.get("/metrics").text
    assert status["pid"] == demo_server.pid
    assert "slotstream_expert_misses_total" in metrics
