// SNML from Node: `node client.js PROTO TARGET COMMAND [ARGUMENT…]` prints one JSON document.
//
// The token, for commands that change the node, comes in the variable SNML_TOKEN. A refused call prints its error body
// and exits with status 5.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [protoFile, target, command, ...words] = process.argv.slice(2);
const definition = loader.loadSync(protoFile, { keepCase: true, longs: String, enums: String, defaults: true });
const { SNMLRPC, EmulatedNodeRPC } = grpc.loadPackageDefinition(definition).rdukit.snml.v1;
const node = new SNMLRPC(target, grpc.credentials.createInsecure());
const emulated = new EmulatedNodeRPC(target, grpc.credentials.createInsecure());

const metadata = new grpc.Metadata();
if (process.env.SNML_TOKEN) {
  metadata.set("authorization", `Bearer ${process.env.SNML_TOKEN}`);
}
const options = { deadline: Date.now() + 15000 };
let calls = 0;

function withId(request) {
  calls += 1;
  return { request_id: `node-${calls}`, ...request };
}

function once(stub, method, request) {
  return new Promise((resolve, reject) => {
    const asked = withId(request);
    stub[method](asked, metadata, options, (error, reply) => {
      if (error) return reject(error);
      if (reply.request_id !== asked.request_id) return reject(new Error("another call's reply"));
      return resolve(reply);
    });
  });
}

function all(stub, method, request) {
  return new Promise((resolve, reject) => {
    const replies = [];
    const stream = stub[method](withId(request), metadata, options);
    stream.on("data", (reply) => replies.push(reply));
    stream.on("error", reject);
    stream.on("end", () => resolve(replies));
  });
}

const commands = {
  async inventory() {
    const reply = await once(node, "GetStaticResource", {});
    const components = [];
    const visit = (component) => {
      components.push({ comp_name: component.comp_name, presence: component.presence, health: component.health });
      component.children.forEach(visit);
    };
    visit(reply.root);
    return { platform: reply.platform_name, components };
  },
  async faults() {
    const replies = await all(node, "GetSystemFaults", { include_cleared: true });
    return { faults: replies.map((reply) => reply.fault) };
  },
  async inject([className, component]) {
    return once(emulated, "Inject", { events: [{ class_name: className, comp_name: component }] });
  },
  async clear(uuids) {
    return { results: await all(node, "ClearSystemFault", { fault_uuids: uuids }) };
  },
  // Watches, injects, and prints the first event of the fault.
  async watch([className, component]) {
    const { sequence } = await new Promise((resolve, reject) => {
      let last = { sequence: "0" };
      const past = emulated.WatchEvents(withId({ no_follow: true }), metadata, options);
      past.on("data", (event) => (last = event));
      past.on("error", reject);
      past.on("end", () => resolve(last));
    });
    const stream = emulated.WatchEvents(withId({ since: sequence, kinds: ["fault"] }), metadata, options);
    const seen = new Promise((resolve, reject) => {
      stream.on("data", resolve);
      stream.on("error", reject);
    });
    await commands.inject([className, component]);
    const event = await seen;
    stream.on("error", () => {}); // cancelled, by us
    stream.cancel();
    return event;
  },
};

async function main() {
  try {
    console.log(JSON.stringify(await commands[command](words)));
  } catch (error) {
    const [body] = error.metadata ? error.metadata.get("rdukit-error-bin") : [];
    console.log(JSON.stringify({ status: error.code, ...(body ? JSON.parse(body.toString()) : {}), text: String(error) }));
    process.exitCode = 5;
  }
  node.close();
  emulated.close();
}

main();
