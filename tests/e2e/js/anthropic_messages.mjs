// The `@anthropic-ai/sdk` package: messages.
import Anthropic from "@anthropic-ai/sdk";
import { city, failure, model, play, question, url, weather } from "./scenes.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0 });
const tools = [{ name: "weather", description: "Tells it.", input_schema: city }];
const asked = (scene) => [{ role: "user", content: question(scene) }];
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

function streamed(request, pieces = []) {
  const stream = client.messages.stream({ model, max_tokens: 128, ...request });
  stream.on("text", (text) => pieces.push(text));
  return stream.finalMessage();
}

async function loop(scene) {
  const messages = asked(scene);
  const calls = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const message = await streamed({ messages, tools });
    const used = message.content.filter((block) => block.type === "tool_use");
    if (!used.length) return { calls, answer: textOf(message) };
    messages.push({ role: "assistant", content: message.content });
    const content = used.map((block) => ({ type: "tool_result", tool_use_id: block.id, content: weather(block.input) }));
    messages.push({ role: "user", content });
    calls.push(...used.map((block) => [block.name, block.input]));
  }
  return { calls, answer: null };
}

await play({
  text: async () => {
    const request = { messages: asked("text"), max_tokens: 16, temperature: 0 };
    const whole = await client.messages.create({ model, ...request });
    const pieces = [];
    await streamed(request, pieces);
    return { whole: textOf(whole), streamed: pieces.join(""), tokens: whole.usage.output_tokens };
  },
  count: async () => (await client.messages.countTokens({ model, messages: asked("text") })).input_tokens,
  thinking: async () => {
    const message = await streamed({ messages: asked("thinking"), thinking: { type: "adaptive" } });
    const [block] = message.content.filter((part) => part.type === "thinking");
    return { thinking: block.thinking, answer: textOf(message) };
  },
  loop: () => loop("loop"),
  refusal: () => failure(() => client.messages.create({ model: "claude-none", max_tokens: 0, messages: [] })),
  fault: () => failure(() => client.messages.create({ model, max_tokens: 16, messages: asked("fault") })),
  broken: async () => {
    const pieces = [];
    const error = await failure(() => streamed({ messages: asked("fault") }, pieces));
    return { ...error, before: pieces.join("") };
  },
  silence: async () => textOf(await streamed({ messages: asked("silence") })),
});
