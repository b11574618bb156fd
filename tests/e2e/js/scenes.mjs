// Runs the scenes that the command line names and prints what the client saw, as one JSON object.
//   node CLIENT.mjs URL MODEL SCENE...

export const [url, model, ...wanted] = process.argv.slice(2);

// A scripted engine finds the scene in the prompt; a model is asked plainly.
const plain = "What is the weather in Bern?";
export const question = (scene) => (["text", "loop"].includes(scene) ? plain : `Scene: ${scene}. ${plain}`);

export const city = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city"],
};

export const weather = (input) => `${input.city}: Sunny, 21 C`;

// What an application sees of a failure.
export async function failure(action) {
  try {
    return { unexpected: await action() };
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? error.statusCode ?? error.status_code ?? null, message: error.message };
  }
}

export async function play(scenes) {
  const seen = {};
  for (const name of wanted) {
    seen[name] = await scenes[name]();
  }
  console.log(JSON.stringify(seen));
  process.exit(0); // sockets that are kept open would hold the process
}
