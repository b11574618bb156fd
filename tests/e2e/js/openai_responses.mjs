// The `openai` package: Responses.
import OpenAI from "openai";
import { city, failure, model, play, question, url, weather } from "./scenes.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const tools = [{ type: "function", name: "weather", description: "Tells it.", parameters: city, strict: false }];

async function streamed(request, pieces = []) {
  const stream = client.responses.stream({ model, temperature: 0, ...request });
  stream.on("response.output_text.delta", (event) => pieces.push(event.delta));
  return stream.finalResponse();
}

async function loop(scene) {
  const input = [{ role: "user", content: question(scene) }];
  const calls = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const response = await streamed({ input, tools });
    const made = response.output.filter((item) => item.type === "function_call");
    if (!made.length) return { calls, answer: response.output_text };
    input.push(...response.output.map(({ parsed_arguments, ...item }) => item));
    for (const call of made) {
      const given = JSON.parse(call.arguments);
      calls.push([call.name, given]);
      input.push({ type: "function_call_output", call_id: call.call_id, output: weather(given) });
    }
  }
  return { calls, answer: null };
}

await play({
  text: async () => {
    const request = { input: question("text"), max_output_tokens: 16 };
    const whole = await client.responses.create({ model, temperature: 0, ...request });
    const final = await streamed(request);
    return { whole: whole.output_text, streamed: final.output_text, tokens: whole.usage.output_tokens };
  },
  thinking: async () => {
    const response = await streamed({ input: question("thinking"), reasoning: { effort: "low" } });
    const [reasoning] = response.output.filter((item) => item.type === "reasoning");
    return { thinking: reasoning.summary.map((part) => part.text).join(""), answer: response.output_text };
  },
  loop: () => loop("loop"),
  refusal: () => failure(() => client.responses.create({ model: "gpt-none", input: "Hello" })),
  fault: () => failure(async () => {
    const response = await client.responses.create({ model, input: question("fault") });
    return { status: response.status, error: response.error };
  }),
  broken: async () => {
    const pieces = [];
    const { status, error, output } = await streamed({ input: question("fault") }, pieces); // the client raises nothing
    return { name: status, message: error.message, before: pieces.join(""), output };
  },
  silence: async () => (await streamed({ input: question("silence") })).output_text,
});
