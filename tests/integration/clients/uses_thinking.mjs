// Thoughts of a model whose chat template begins them, by both packages in JavaScript.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const model = process.env.CLIENT_MODEL;
const messages = [{ role: "user", content: "Which rivers flow through Basel?" }];
const anthropic = new Anthropic();
const asked = { model, messages, max_tokens: 2048, thinking: { type: "enabled", budget_tokens: 1024 } };

const message = await anthropic.messages.create(asked);
assert.equal(message.content[0].type, "thinking");
assert.ok(message.content[0].thinking.length);

let thinking = "";
const final = await anthropic.messages
  .stream(asked)
  .on("thinking", (part) => (thinking += part))
  .finalMessage();
assert.equal(final.content[0].thinking, thinking);
assert.ok(thinking.length);
await anthropic.messages.create({
  ...asked,
  messages: [...messages, { role: "assistant", content: message.content }, { role: "user", content: "And Bern?" }],
});
const quiet = await anthropic.messages.create({ ...asked, thinking: { type: "disabled" } });
assert.ok(quiet.content.every((block) => block.type === "text"));

const openai = new OpenAI();
const chat = await openai.chat.completions.create({ model, messages, reasoning_effort: "high" });
assert.ok(chat.choices[0].message.reasoning_content.length);
const response = await openai.responses.create({ model, input: messages, reasoning: { effort: "high" } });
assert.equal(response.output[0].type, "reasoning");
console.log("done");
