// The `ollama` package.
import { Ollama } from "ollama";
import { city, failure, model, play, question, url, weather } from "./scenes.mjs";

const client = new Ollama({ host: url });
const tools = [{ type: "function", function: { name: "weather", description: "Tells it.", parameters: city } }];
const asked = (scene) => [{ role: "user", content: question(scene) }];

async function streamed(request, pieces = []) {
  let tool_calls = [];
  for await (const part of await client.chat({ model, stream: true, ...request })) {
    if (part.message.content) pieces.push(part.message.content);
    tool_calls = tool_calls.concat(part.message.tool_calls ?? []);
  }
  return { role: "assistant", content: pieces.join(""), tool_calls };
}

async function loop(scene) {
  const messages = asked(scene);
  const calls = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const message = await streamed({ messages, tools, options: { temperature: 0 } });
    if (!message.tool_calls.length) return { calls, answer: message.content };
    messages.push(message);
    for (const call of message.tool_calls) {
      calls.push([call.function.name, call.function.arguments]);
      messages.push({ role: "tool", tool_name: call.function.name, content: weather(call.function.arguments) });
    }
  }
  return { calls, answer: null };
}

await play({
  models: async () => {
    const listed = (await client.list()).models.map((entry) => entry.model);
    const running = (await client.ps()).models.map((entry) => entry.model);
    const { capabilities } = await client.show({ model });
    return { listed, running, capabilities };
  },
  text: async () => {
    const request = { messages: asked("text"), options: { num_predict: 16, temperature: 0 } };
    const whole = await client.chat({ model, ...request });
    const message = await streamed(request);
    return { whole: whole.message.content, streamed: message.content, tokens: whole.eval_count };
  },
  generate: async () => {
    const options = { num_predict: 16, temperature: 0 };
    const pieces = [];
    for await (const part of await client.generate({ model, prompt: question("text"), options, stream: true })) pieces.push(part.response);
    return { whole: (await client.generate({ model, prompt: question("text"), options })).response, streamed: pieces.join("") };
  },
  thinking: async () => {
    const { message } = await client.chat({ model, messages: asked("thinking"), think: true });
    return { thinking: message.thinking, answer: message.content };
  },
  loop: () => loop("loop"),
  refusal: () => failure(() => client.show({ model: "llama-none" })),
  fault: () => failure(() => client.chat({ model, messages: asked("fault") })),
  broken: async () => {
    const pieces = [];
    const error = await failure(() => streamed({ messages: asked("fault") }, pieces));
    return { ...error, before: pieces.join("") };
  },
  silence: async () => (await streamed({ messages: asked("silence") })).content,
});
