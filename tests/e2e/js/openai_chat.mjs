// The `openai` package: chat completions.
import OpenAI from "openai";
import { city, failure, model, play, question, url, weather } from "./scenes.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const tools = [{ type: "function", function: { name: "weather", description: "Tells it.", parameters: city } }];
const asked = (scene) => [{ role: "user", content: question(scene) }];

async function streamed(request, pieces = []) {
  const stream = await client.chat.completions.create({ model, stream: true, temperature: 0, ...request });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
  }
  return pieces;
}

async function loop(scene) {
  const messages = asked(scene);
  const calls = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const stream = client.chat.completions.stream({ model, messages, tools, temperature: 0 });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    if (!message.tool_calls?.length) return { calls, answer: message.content };
    messages.push(message);
    for (const call of message.tool_calls) {
      const input = JSON.parse(call.function.arguments);
      calls.push([call.function.name, input]);
      messages.push({ role: "tool", tool_call_id: call.id, content: weather(input) });
    }
  }
  return { calls, answer: null };
}

await play({
  models: async () => (await client.models.list()).data.map((entry) => entry.id),
  text: async () => {
    const whole = await client.chat.completions.create({ model, messages: asked("text"), temperature: 0, max_tokens: 16 });
    const pieces = await streamed({ messages: asked("text"), max_tokens: 16 });
    return { whole: whole.choices[0].message.content, streamed: pieces.join(""), tokens: whole.usage.completion_tokens };
  },
  thinking: async () => {
    const reply = await client.chat.completions.create({ model, messages: asked("thinking"), reasoning_effort: "low" });
    const { reasoning_content, content } = reply.choices[0].message;
    return { thinking: reasoning_content, answer: content };
  },
  loop: () => loop("loop"),
  refusal: () => failure(() => client.chat.completions.create({ model, messages: asked("text"), n: 2 })),
  fault: () => failure(() => client.chat.completions.create({ model, messages: asked("fault") })),
  broken: async () => {
    const pieces = [];
    const error = await failure(() => streamed({ messages: asked("fault") }, pieces));
    return { ...error, before: pieces.join("") };
  },
  silence: async () => (await streamed({ messages: asked("silence") })).join(""),
});
