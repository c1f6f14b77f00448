// Markdown of models and tools. Its tokens become elements one by one: nothing is ever parsed as HTML, links lead only to
// the web, and images are links, so that no text can make the page run or request anything.

import { lexer, type MarkedToken, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { RefText } from "./refs";

/** Texts above this length are shown as they are: no reader wants them laid out. */
const LONGEST = 200_000;

export function Markdown({ text, inline }: { text: string; inline?: (text: string) => ComponentChildren }) {
  const tokens = useMemo(() => (text.length > LONGEST ? null : parse(text)), [text]);
  if (tokens === null) return <pre class="plain">{text}</pre>;
  const show = inline ?? ((part: string) => <RefText text={part} />);
  return <div class="markdown">{blocks(tokens, show)}</div>;
}

function parse(text: string): Token[] | null {
  try {
    return lexer(text, { gfm: true });
  } catch {
    return null;
  }
}

type Show = (text: string) => ComponentChildren;

function blocks(tokens: Token[], show: Show): ComponentChildren {
  return tokens.map((token, n) => <Block key={n} token={token as MarkedToken} show={show} />);
}

function Block({ token, show }: { token: MarkedToken; show: Show }): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return <p class={`heading heading-${token.depth}`}>{inlines(token.tokens, show)}</p>;
    case "paragraph":
      return <p>{inlines(token.tokens, show)}</p>;
    case "code":
      return (
        <pre class="code" tabIndex={0} aria-label={token.lang ? `code, ${token.lang}` : "code"}>
          <code>{token.text}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote>{blocks(token.tokens, show)}</blockquote>;
    case "list":
      return <List token={token} show={show} />;
    case "table":
      return <Table token={token} show={show} />;
    case "hr":
      return <hr />;
    case "text":
      return <p>{token.tokens ? inlines(token.tokens, show) : show(token.text)}</p>;
    default:
      return <p>{show(token.raw)}</p>;
  }
}

function List({ token, show }: { token: Tokens.List; show: Show }) {
  const items = token.items.map((item, n) => (
    <li key={n} class={item.task ? "task" : undefined}>
      {item.task ? <span aria-hidden="true">{item.checked ? "☑ " : "☐ "}</span> : null}
      {item.tokens.map((part, m) =>
        part.type === "text" && !item.loose ? (
          <span key={m}>{inlines((part as Tokens.Text).tokens ?? [], show)}</span>
        ) : part.type === "checkbox" ? null : (
          <Block key={m} token={part as MarkedToken} show={show} />
        ),
      )}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ token, show }: { token: Tokens.Table; show: Show }) {
  return (
    <div class="table" tabIndex={0} role="group" aria-label="table">
      <table>
        <thead>
          <tr>
            {token.header.map((cell, n) => (
              <th key={n}>{inlines(cell.tokens, show)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, n) => (
            <tr key={n}>
              {row.map((cell, m) => (
                <td key={m}>{inlines(cell.tokens, show)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[], show: Show): ComponentChildren {
  return tokens.map((token, n) => <Inline key={n} token={token as MarkedToken} show={show} />);
}

function Inline({ token, show }: { token: MarkedToken; show: Show }): ComponentChildren {
  switch (token.type) {
    case "strong":
      return <strong>{inlines(token.tokens, show)}</strong>;
    case "em":
      return <em>{inlines(token.tokens, show)}</em>;
    case "del":
      return <del>{inlines(token.tokens, show)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return <Outside href={token.href}>{inlines(token.tokens, show)}</Outside>;
    case "image":
      return <Outside href={token.href}>{`image: ${token.text || token.href}`}</Outside>;
    case "escape":
      return <>{token.text}</>;
    case "text":
      return token.tokens ? <>{inlines(token.tokens, show)}</> : <>{show(token.text)}</>;
    default:
      return <>{token.raw}</>;
  }
}

/** Return a link to the web. An address that is not of the web is shown beside its text, and leads nowhere. */
export function Outside({ href, children }: { href: string; children: ComponentChildren }) {
  const safe = webAddress(href);
  if (safe === null) {
    return (
      <span class="dead-link" title={href}>
        {children}
      </span>
    );
  }
  return (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow" title={safe}>
      {children}
    </a>
  );
}

/** Return the address if it is one of the web, as the browser writes it; else nothing. */
export function webAddress(href: string): string | null {
  try {
    const url = new URL(href);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
