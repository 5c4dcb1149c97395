// The package `openai` in JavaScript: chats, streams, tools and structured outputs with zod, responses, embeddings.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { toResponseInputItems } from "openai/lib/responses/ResponseInputItems";
import { z } from "zod";

const model = process.env.CLIENT_MODEL;
const client = new OpenAI();
const messages = [
  { role: "developer", content: "Be brief." },
  { role: "user", content: "Which rivers flow through Basel?" },
];

const chat = await client.chat.completions.create({ model, messages });
assert.equal(typeof chat.choices[0].message.content, "string");
assert.ok(chat._request_id);

let text = "";
const parts = await client.chat.completions.create({
  model,
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const part of parts) {
  text += part.choices[0]?.delta?.content ?? "";
  if (part.usage) assert.ok(part.usage.completion_tokens >= 0);
}
console.log("stream", JSON.stringify(text));

const chances = [];
const streamed = client.chat.completions
  .stream({ model, messages, logprobs: true, top_logprobs: 2 })
  .on("logprobs.content.delta", (found) => chances.push(found));
assert.equal((await streamed.finalChatCompletion()).choices[0].finish_reason, "stop");
assert.ok(chances.length);

const River = z.object({
  name: z.string().describe("its name"),
  kind: z.enum(["river", "stream"]),
  tributaries: z.array(z.string()),
  length: z.union([z.number().min(0).max(9999), z.null()]),
  mouth: z.object({ sea: z.string() }).nullable(),
});
const parsed = await client.chat.completions.parse({
  model,
  messages,
  response_format: zodResponseFormat(River, "river"),
});
River.parse(parsed.choices[0].message.parsed);
const formed = client.chat.completions.stream({ model, messages, response_format: zodResponseFormat(River, "river") });
River.parse((await formed.finalChatCompletion()).choices[0].message.parsed);

const Place = z.object({ city: z.string(), unit: z.enum(["c", "f"]).default("c") });
const called = await client.chat.completions.parse({
  model,
  messages,
  tools: [zodFunction({ name: "get_weather", parameters: Place })],
  tool_choice: "required",
});
Place.parse(called.choices[0].message.tool_calls[0].function.parsed_arguments);

const seen = [];
const runner = client.chat.completions
  .runTools(
    {
      model,
      messages,
      stream: true,
      tool_choice: { type: "function", function: { name: "get_weather" } },
      tools: [
        zodFunction({
          name: "get_weather",
          description: "Return the weather of a city.",
          parameters: Place,
          function: (place) => {
            seen.push(Place.parse(place));
            return { degrees: 14 };
          },
        }),
      ],
    },
    { maxChatCompletions: 2 },
  )
  .on("tool_calls.function.arguments.done", (done) => Place.parse(done.parsed_arguments));
await runner.done();
assert.ok(seen.length, "no tool was called");
assert.ok(runner.messages.some((message) => message.role === "tool"));

const response = await client.responses.create({ model, instructions: "Be brief.", input: "Name a lake." });
assert.equal(response.status, "completed");
const next = await client.responses.create({
  model,
  reasoning: { effort: "high" },
  input: [
    { role: "user", content: "Name a lake." },
    ...toResponseInputItems(response.output),
    { role: "user", content: "Another one." },
  ],
});
console.log("response", JSON.stringify(next.output_text));
const events = client.responses
  .stream({ model, input: "Describe a river.", text: { format: zodTextFormat(River, "river") } })
  .on("response.output_text.delta", (event) => assert.equal(typeof event.delta, "string"));
River.parse((await events.finalResponse()).output_parsed);
const asked = await client.responses.parse({
  model,
  input: "The weather?",
  tools: [zodResponsesFunction({ name: "get_weather", parameters: Place })],
  tool_choice: "required",
});
Place.parse(asked.output.find((item) => item.type === "function_call").parsed_arguments);

// The client asks for base64 and decodes it itself, unless a format is stated.
const [one, other] = (await client.embeddings.create({ model, input: ["one", "other"] })).data;
const floats = await client.embeddings.create({ model, input: "one", encoding_format: "float" });
assert.deepEqual(one.embedding, floats.data[0].embedding);
assert.equal(one.embedding.length, other.embedding.length);
assert.ok((await client.models.list()).data.some((found) => found.id === model));
const { data, response: raw } = await client.completions.create({ model, prompt: "Say it." }).withResponse();
assert.ok(raw.headers.get("content-type").startsWith("application/json") && data.choices.length);

await assert.rejects(
  client.chat.completions.create({ model, messages, temperature: 7 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
);
await assert.rejects(
  client.chat.completions.create({ model: "other", messages }),
  (error) => error instanceof OpenAI.NotFoundError,
);
const long = await client.chat.completions.create({ model, messages, stream: true });
for await (const part of long) {
  if (part.choices.length) break; // which cancels it
}
console.log("done");
