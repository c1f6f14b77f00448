"""The tables of the index of past turns in PostgreSQL, and the statements on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from loopline.memory.turn_rows import turns_statement

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_OWNER_LOCK = """
pg_advisory_xact_lock(hashtextextended(concat_ws(chr(1), 'past turns', current_schema(), {}, {}, {}), 0))
"""
# No table refers to those of the log, because each text would lock a row of the log. Instead each transaction that writes
# texts or vectors of an owner has the lock of the owner, and so has one that forgets a conversation of the owner: after it
# no text of the conversation is left, whichever process is killed, and none is added.
# `words` are made by the rules of `word_stems`. A version of Loopline with other rules needs tables with other names,
# because this version may use these at the same time.
SCHEMA = (
    """CREATE TABLE turn_conversations(
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner BYTEA NOT NULL,
        name TEXT COLLATE "C" NOT NULL, uid TEXT COLLATE "C" NOT NULL, head BIGINT NOT NULL, UNIQUE (owner, name)
    )""",
    "CREATE INDEX turn_conversations_by_uid ON turn_conversations (uid)",
    """CREATE TABLE turn_texts(
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        conversation BIGINT NOT NULL REFERENCES turn_conversations ON DELETE CASCADE,
        owner BYTEA NOT NULL, turn BIGINT NOT NULL, seq BIGINT NOT NULL, start BIGINT NOT NULL,
        input_seq BIGINT NOT NULL, target TEXT COLLATE "C" NOT NULL, ts BIGINT NOT NULL, ref TEXT NOT NULL,
        digest BYTEA NOT NULL, body TEXT NOT NULL, words BIGINT[] NOT NULL
    )""",
    "CREATE INDEX turn_texts_by_turn ON turn_texts (conversation, turn)",
    "CREATE INDEX turn_texts_by_digest ON turn_texts (owner, digest)",
    "CREATE INDEX turn_texts_by_word ON turn_texts USING gin (words)",
    """CREATE TABLE turn_vectors(
        owner BYTEA NOT NULL, digest BYTEA NOT NULL, embedder BYTEA NOT NULL, data BYTEA,
        PRIMARY KEY (owner, digest, embedder)
    )""",
    """CREATE FUNCTION remove_turn_vectors() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        DELETE FROM turn_vectors AS vector USING removed
        WHERE vector.owner = removed.owner AND vector.digest = removed.digest AND NOT EXISTS (
            SELECT 1 FROM turn_texts WHERE turn_texts.owner = vector.owner AND turn_texts.digest = vector.digest
        );
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER remove_turn_vectors AFTER DELETE ON turn_texts
        REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION remove_turn_vectors()""",
    f"""CREATE FUNCTION remove_forgotten_turns() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM {_OWNER_LOCK.format("tenant", "project", '"user"')}
        FROM conversations WHERE id = new.conversation;
        DELETE FROM turn_conversations USING conversations
        WHERE conversations.id = new.conversation AND turn_conversations.uid = conversations.uid;
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER remove_forgotten_turns AFTER INSERT ON tombstones
        FOR EACH ROW EXECUTE FUNCTION remove_forgotten_turns()""",
)
# Not `to_regclass`, which may use a cache that does not yet have the tables of another process.
IS_CREATED = """
SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'turn_texts')
"""
LOCK_CREATION = "SELECT pg_advisory_xact_lock(hashtextextended('past turns', 0))"
FIND_EXTENSION = """
SELECT quote_ident(nspname), EXISTS (
    SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('turn_vectors') AND attname = 'point' AND NOT attisdropped
) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'
"""
ADD_POINTS = "ALTER TABLE turn_vectors ADD COLUMN IF NOT EXISTS point {}.vector"


def _statement(text: str) -> str:
    """Return a statement with its parameters `:name` written as the driver expects them."""
    return _PARAMETER.sub(r"%(\1)s", text)


_NAMES = (f"CAST(:{name} AS TEXT)" for name in ("tenant", "project", "user"))
LOCK_OWNER = _statement(f"SELECT {_OWNER_LOCK.format(*_NAMES)}")
PROGRESS = _statement("SELECT name, uid, head FROM turn_conversations WHERE owner = :owner")
FORGOTTEN = _statement("""
SELECT uid FROM conversations JOIN tombstones ON tombstones.conversation = conversations.id
WHERE uid = ANY(CAST(:uids AS TEXT[]))
""")
REMOVE_CONVERSATIONS = _statement(
    "DELETE FROM turn_conversations WHERE owner = :owner AND name = ANY(CAST(:names AS TEXT[]))"
)
SET_PROGRESS = _statement("""
INSERT INTO turn_conversations(owner, name, uid, head)
SELECT :owner, name, uid, head
FROM json_to_recordset(CAST(:rows AS JSON)) AS new(name TEXT, uid TEXT, head BIGINT)
ON CONFLICT (owner, name) DO UPDATE SET uid = excluded.uid, head = excluded.head RETURNING name, id
""")
ADD_TEXTS = _statement("""
INSERT INTO turn_texts(conversation, owner, turn, seq, start, input_seq, target, ts, ref, digest, body, words)
SELECT conversation, :owner, turn, seq, start, input_seq, target, ts, ref, decode(digest, 'hex'), body,
    CAST(words AS BIGINT[])
FROM json_to_recordset(CAST(:rows AS JSON)) AS new(
    conversation BIGINT, turn BIGINT, seq BIGINT, start BIGINT, input_seq BIGINT, target TEXT, ts BIGINT, ref TEXT,
    digest TEXT, body TEXT, words TEXT
)
""")
REMOVE_RECALLED = _statement("""
DELETE FROM turn_texts USING json_to_recordset(CAST(:rows AS JSON)) AS recalled(conversation BIGINT, input_seq BIGINT)
WHERE turn_texts.conversation = recalled.conversation AND turn_texts.input_seq = recalled.input_seq
""")

_TEXTS = "FROM turn_texts AS turn_text JOIN turn_conversations AS indexed ON indexed.id = turn_text.conversation"
_COLUMNS = f"SELECT turn_text.id, name, turn_text.turn, seq, start, input_seq, target, ts, ref, body {_TEXTS}"
_LIMITS = """
target = ANY(CAST(:targets AS TEXT[]))
AND NOT (name = :current AND turn_text.turn >= :before_turn)
AND (CAST(:conversation AS TEXT) IS NULL OR name = :conversation)
AND (CAST(:since AS BIGINT) IS NULL OR ts >= :since) AND (CAST(:until AS BIGINT) IS NULL OR ts <= :until)
"""
_ALLOWED = f"turn_text.owner = :owner AND {_LIMITS}"
# Not the column alone, and `OFFSET 0` where a word is looked up: without statistics of the tables the server would look up
# the owner instead of the word and read all texts of the owner, or even read the texts of all owners.
_HAS_OWNER = "turn_text.owner || '' = :owner"
COUNT_TERMS = _statement(f"""
SELECT (SELECT count(*) FROM turn_texts WHERE owner = :owner), ARRAY(
    SELECT (SELECT count(*) FROM turn_texts AS turn_text WHERE words @> ARRAY[word] AND {_HAS_OWNER})
    FROM unnest(CAST(:words AS BIGINT[])) WITH ORDINALITY AS wanted(word, place) ORDER BY place
)
""")
MATCHING = _statement(f"""
{_COLUMNS} JOIN (
    SELECT turn_text.id, sum(weight) AS weight
    FROM unnest(CAST(:words AS BIGINT[]), CAST(:weights AS FLOAT8[])) AS wanted(word, weight)
    CROSS JOIN LATERAL (SELECT * FROM turn_texts WHERE words @> ARRAY[word] OFFSET 0) AS turn_text
    JOIN turn_conversations AS indexed ON indexed.id = turn_text.conversation
    WHERE {_HAS_OWNER} AND {_LIMITS} GROUP BY turn_text.id ORDER BY sum(weight) DESC, turn_text.id DESC LIMIT :limit
) AS best ON best.id = turn_text.id ORDER BY best.weight DESC, turn_text.id DESC
""")
NUMBERED = _statement(f"{_COLUMNS} WHERE {_ALLOWED} AND turn_text.id = ANY(CAST(:ids AS BIGINT[]))")
DIGESTS = _statement(f"SELECT turn_text.id, turn_text.digest {_TEXTS} WHERE {_ALLOWED}")
VECTORS = _statement("""
SELECT digest, data FROM turn_vectors WHERE owner = :owner AND embedder = :embedder AND data IS NOT NULL
AND (CAST(:digests AS BYTEA[]) IS NULL OR digest = ANY(:digests))
""")


def turns(ordinal: int | None) -> str:
    """Return the query for the texts of the newest turns; with an ordinal, of the newest turns at that position."""
    return _statement(turns_statement(ordinal, columns=_COLUMNS, texts=_TEXTS, allowed=_ALLOWED))


@dataclass(frozen=True, slots=True)
class VectorStatements:
    """The statements that depend on whether the database compares vectors, with the extension in this schema, or not."""

    extension: str | None = None

    @property
    def _column(self) -> str:
        return "data" if self.extension is None else "point"

    @property
    def unembedded(self) -> str:
        """The query for the newest texts of the owner without a vector of the embedder, with their digests."""
        return _statement(f"""
        SELECT newest.digest, body FROM (
            SELECT digest, max(id) AS id, max(ts) AS ts FROM turn_texts WHERE owner = :owner AND NOT EXISTS (
                SELECT 1 FROM turn_vectors AS vector WHERE vector.owner = turn_texts.owner
                AND vector.digest = turn_texts.digest AND vector.embedder = :embedder AND {self._column} IS NOT NULL
            ) GROUP BY digest ORDER BY max(ts) DESC, max(id) DESC LIMIT :limit
        ) AS newest JOIN turn_texts ON turn_texts.id = newest.id ORDER BY newest.ts DESC, newest.id DESC
        """)

    @property
    def add(self) -> str:
        """The statement that adds or replaces vectors of texts that are in the index."""
        array, value = "BYTEA[]", "new.vector"
        if self.extension is not None:
            array, value = "TEXT[]", f"CAST(new.vector AS {self.extension}.vector)"
        return _statement(f"""
        INSERT INTO turn_vectors(owner, digest, embedder, {self._column})
        SELECT :owner, new.digest, :embedder, {value}
        FROM unnest(CAST(:digests AS BYTEA[]), CAST(:vectors AS {array})) AS new(digest, vector)
        WHERE EXISTS (SELECT 1 FROM turn_texts WHERE turn_texts.owner = :owner AND turn_texts.digest = new.digest)
        ON CONFLICT (owner, digest, embedder) DO UPDATE SET {self._column} = excluded.{self._column}
        """)

    @property
    def count(self) -> str:
        """The query for the number of the owner's vectors of the embedder, and of the owner's different texts."""
        return _statement(f"""
        SELECT (
            SELECT count(*) FROM turn_vectors WHERE owner = :owner AND embedder = :embedder AND {self._column} IS NOT NULL
        ), (SELECT count(DISTINCT digest) FROM turn_texts WHERE owner = :owner)
        """)

    @property
    def cosines(self) -> str:
        """The query for the cosines of the texts `ids`, and of the `nearest` texts nearest to the vector."""
        return _statement(f"""
        WITH compared AS MATERIALIZED (
            SELECT turn_text.id, -(point OPERATOR({self.extension}.<#>) CAST(:vector AS {self.extension}.vector)) AS cosine
            {_TEXTS} JOIN turn_vectors AS vector ON vector.owner = turn_text.owner AND vector.digest = turn_text.digest
            WHERE vector.embedder = :embedder AND point IS NOT NULL AND {_ALLOWED}
        )
        (SELECT id, cosine FROM compared ORDER BY cosine DESC LIMIT :nearest)
        UNION SELECT id, cosine FROM compared WHERE id = ANY(CAST(:ids AS BIGINT[]))
        """)
