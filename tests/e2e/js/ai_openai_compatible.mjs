// The AI SDK with `@ai-sdk/openai-compatible`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { scenesOf } from "./ai_sdk.mjs";
import { model, play, url } from "./scenes.mjs";

const provider = createOpenAICompatible({ name: "slotstream", baseURL: `${url}/v1`, apiKey: "unused", includeUsage: true });

await play(
  scenesOf(ai, provider(model), {
    missing: provider("none"),
    thinking: { providerOptions: { slotstream: { reasoningEffort: "low" } } },
  }),
);
