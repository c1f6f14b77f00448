// What a server with authentication asks for: a login at its provider, or a key.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { saveKey } from "../api";
import { beginLogin, fetchLogin, loginProblem, type Login } from "../login";
import { refreshStored } from "../state";

export function SignIn() {
  const key = useSignal("");
  const wrong = useSignal(false);
  const login = useSignal<Login | null>(null);

  useEffect(() => {
    fetchLogin()
      .then((answer) => (login.value = answer))
      .catch(() => (login.value = null));
  }, []);

  const provider = login.value;
  return (
    <main class="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          loginProblem.value = "";
          saveKey(key.value.trim());
          void refreshStored().then(() => (wrong.value = true));
        }}
      >
        <h1>Loopline</h1>
        {loginProblem.value ? (
          <p class="trouble" role="alert">
            {loginProblem.value}
          </p>
        ) : null}
        {provider ? (
          <>
            <button type="button" class="primary" onClick={() => void beginLogin(provider)}>
              Sign in at {new URL(provider.issuer).host}
            </button>
            <p class="sign-in-or">or with a key</p>
          </>
        ) : (
          <p>This server needs a key.</p>
        )}
        <input
          type="password"
          autocomplete="off"
          aria-label="Key"
          placeholder="Key or token"
          value={key.value}
          onInput={(event) => {
            key.value = event.currentTarget.value;
          }}
        />
        {wrong.value ? <p class="trouble" role="alert">The server does not accept this key.</p> : null}
        <button type="submit" class={provider ? "" : "primary"}>
          Sign in
        </button>
        <p class="hint">The key stays in this tab, and is forgotten when the tab closes.</p>
      </form>
    </main>
  );
}
