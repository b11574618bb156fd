// The AI SDK with `@ai-sdk/gateway`.
import { createGateway } from "@ai-sdk/gateway";
import * as ai from "ai";
import { scenesOf } from "./ai_sdk.mjs";
import { model, play, url } from "./scenes.mjs";

const gateway = createGateway({ baseURL: `${url}/v3/ai`, apiKey: "unused" });

await play({
  ...scenesOf(ai, gateway(model), { missing: gateway("someone/none") }),
  models: async () => (await gateway.getAvailableModels()).models.map((entry) => entry.id),
});
