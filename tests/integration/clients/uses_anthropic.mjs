// The package `@anthropic-ai/sdk` in JavaScript: messages, streams, tools and structured outputs with zod, thinking.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const model = process.env.CLIENT_MODEL;
const client = new Anthropic();
const asked = { model, max_tokens: 1024, messages: [{ role: "user", content: "Which rivers flow through Basel?" }] };

const message = await client.messages.create(asked);
assert.equal(message.type, "message");
assert.ok(message.usage.input_tokens > 0 && message._request_id);

const kinds = new Set();
for await (const event of await client.messages.create({ ...asked, stream: true })) kinds.add(event.type);
for (const kind of ["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"]) {
  assert.ok(kinds.has(kind), kind);
}

let text = "";
const stream = client.messages.stream(asked).on("text", (part) => (text += part));
const final = await stream.finalMessage();
assert.equal(final.content.map((block) => block.text ?? "").join(""), text);
console.log("stream", JSON.stringify(text));

const Place = z.object({ city: z.string().describe("where"), unit: z.enum(["c", "f"]) });
const tools = [
  { name: "get_weather", description: "Return the weather of a city.", input_schema: z.toJSONSchema(Place) },
];
const inputs = [];
const used = await client.messages
  .stream({ ...asked, tools, tool_choice: { type: "any" } })
  .on("inputJson", (delta, snapshot) => inputs.push(snapshot))
  .finalMessage();
assert.equal(used.stop_reason, "tool_use");
const call = used.content.find((block) => block.type === "tool_use");
Place.parse(call.input);
assert.ok(inputs.length);
await client.messages.create({
  ...asked,
  tools,
  messages: [
    ...asked.messages,
    { role: "assistant", content: used.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: [{ type: "text", text: "14" }] }] },
  ],
});

const seen = [];
await client.beta.messages.toolRunner({
  ...asked,
  tool_choice: { type: "any" },
  max_iterations: 2,
  tools: [
    betaZodTool({
      name: "get_weather",
      description: "Return the weather of a city.",
      inputSchema: Place,
      run: (place) => {
        seen.push(Place.parse(place));
        return "14 degrees";
      },
    }),
  ],
});
assert.ok(seen.length, "no tool was called");

const River = z.object({ name: z.string(), kind: z.enum(["river", "stream"]), lengths: z.array(z.number().min(0).max(9999)) });
const output_config = { format: zodOutputFormat(River) };
River.parse((await client.messages.parse({ ...asked, output_config })).parsed_output);
River.parse((await client.messages.stream({ ...asked, output_config }).finalMessage()).parsed_output);

const quiet = await client.messages.create({ ...asked, thinking: { type: "disabled" } });
assert.ok(quiet.content.every((block) => block.type === "text"));
assert.ok((await client.messages.countTokens({ model, messages: asked.messages })).input_tokens > 0);

await assert.rejects(
  client.messages.create({ ...asked, temperature: 7 }),
  (error) => error instanceof Anthropic.BadRequestError && error.error.error.type === "invalid_request_error",
);
for await (const event of await client.messages.create({ ...asked, stream: true })) {
  if (event.type === "content_block_delta") break; // which cancels it
}
console.log("done");
