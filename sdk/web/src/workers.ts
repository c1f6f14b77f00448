// The worker of the search. The policy of the page lets a script come from one address alone: that of this worker.

import address from "./search.worker?worker&url";

interface TrustedTypes {
  createPolicy: (name: string, rules: { createScriptURL: (url: string) => string }) => { createScriptURL: (url: string) => string };
}

const script = new URL(address, import.meta.url).href;

function trustedAddress(): string {
  const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes };
  if (trustedTypes === undefined) return script;
  policy ??= trustedTypes.createPolicy("worker", {
    createScriptURL: (url) => {
      if (url !== script) throw new TypeError("only the worker of the search is trusted");
      return url;
    },
  });
  return policy.createScriptURL(script);
}

let policy: ReturnType<TrustedTypes["createPolicy"]> | undefined;

/** Return a new worker that searches. */
export function startWorker(): Worker {
  return new Worker(trustedAddress(), { type: "module" });
}
