// The next generation of the AI SDK with its gateway, which asks under /v4/ai.
import { createGateway } from "gateway4";
import * as ai from "ai7";
import { scenesOf } from "./ai_sdk.mjs";
import { model, play, url } from "./scenes.mjs";

const gateway = createGateway({ baseURL: `${url}/v4/ai`, apiKey: "unused" });

await play({
  ...scenesOf(ai, gateway(model), { missing: gateway("someone/none"), thinking: { reasoning: "low" } }),
  models: async () => (await gateway.getAvailableModels()).models.map((entry) => entry.id),
});
