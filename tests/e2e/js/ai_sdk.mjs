// What the AI SDK's clients do alike: generateText, streamText and its tool loop.
import { city, failure, question, weather } from "./scenes.mjs";

export function scenesOf(ai, model, { missing, thinking }) {
  const { generateText, jsonSchema, stepCountIs, streamText, tool } = ai;
  const tools = {
    weather: tool({ description: "Tells it.", inputSchema: jsonSchema(city), execute: async (input) => weather(input) }),
  };
  const shared = { model, temperature: 0, maxRetries: 0 };

  async function streamed(request, pieces = []) {
    const problems = [];
    const result = streamText({ ...shared, onError: ({ error }) => problems.push(error), ...request });
    for await (const part of result.textStream) pieces.push(part);
    if (problems.length) throw problems[0];
    return result;
  }

  return {
    text: async () => {
      const request = { prompt: question("text"), maxOutputTokens: 16 };
      const whole = await generateText({ ...shared, ...request });
      const pieces = [];
      await streamed(request, pieces);
      return { whole: whole.text, streamed: pieces.join(""), tokens: whole.usage.outputTokens };
    },
    thinking: async () => {
      const reply = await generateText({ ...shared, prompt: question("thinking"), ...thinking });
      return { thinking: reply.reasoningText, answer: reply.text };
    },
    loop: async () => {
      const result = await streamed({ prompt: question("loop"), tools, stopWhen: stepCountIs(5) });
      const steps = await result.steps;
      const calls = steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input]));
      return { calls, answer: steps.at(-1).text };
    },
    refusal: () => failure(() => generateText({ ...shared, model: missing, prompt: "Hello" })),
    fault: () => failure(() => generateText({ ...shared, prompt: question("fault") })),
    broken: async () => {
      const pieces = [];
      const error = await failure(() => streamed({ prompt: question("fault") }, pieces));
      return { ...error, before: pieces.join("") };
    },
    silence: async () => {
      const pieces = [];
      await streamed({ prompt: question("silence") }, pieces);
      return pieces.join("");
    },
  };
}
