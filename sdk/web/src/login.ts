// The login at an OpenID provider: the authorization code flow with PKCE. The server fetches the token for the page.

import { signal } from "@preact/signals";
import { isFile } from "./embedded";
import { get, postHeaders, saveKey } from "./api";

export interface Login {
  issuer: string;
  authorization_url: string;
  client_id: string;
  scope: string;
}

const BEGUN = "loopline-login";

/** Why the last login failed, or nothing. */
export const loginProblem = signal("");

/** Return how people sign in at a provider, or nothing if they cannot. */
export async function fetchLogin(): Promise<Login | null> {
  const login = await get<Login>("login");
  return login.authorization_url ? login : null;
}

function address(): string {
  return `${location.origin}${location.pathname}`;
}

function encode(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function random(): string {
  return encode(crypto.getRandomValues(new Uint8Array(32)));
}

/** Open the page of the provider, which returns to this page with a code. */
export async function beginLogin(login: Login): Promise<void> {
  const verifier = random();
  const state = random();
  sessionStorage.setItem(BEGUN, JSON.stringify({ verifier, state, hash: location.hash }));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const url = new URL(login.authorization_url);
  const query = {
    response_type: "code",
    client_id: login.client_id,
    redirect_uri: address(),
    scope: login.scope,
    state,
    code_challenge: encode(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  location.assign(url);
}

/** Finish a login if the provider has just returned here. The code is removed from the address at once. */
export async function finishLogin(): Promise<void> {
  const query = new URLSearchParams(location.search);
  if (isFile || !query.has("state")) return;
  const begun = JSON.parse(sessionStorage.getItem(BEGUN) ?? "{}") as { verifier?: string; state?: string; hash?: string };
  sessionStorage.removeItem(BEGUN);
  history.replaceState(null, "", address());
  location.hash = begun.hash ?? "";
  const code = query.get("code");
  if (!begun.verifier || begun.state !== query.get("state")) {
    loginProblem.value = "This login was not begun in this tab. Sign in again.";
    return;
  }
  if (code === null) {
    loginProblem.value = query.get("error_description") ?? query.get("error") ?? "The provider gave no code.";
    return;
  }
  try {
    const headers = {
      "Loopline-Login-Code": code,
      "Loopline-Login-Verifier": begun.verifier,
      "Loopline-Login-Address": address(),
    };
    saveKey((await postHeaders<{ token: string }>("login/token", headers)).token);
  } catch (error) {
    loginProblem.value = error instanceof Error ? error.message : String(error);
  }
}
