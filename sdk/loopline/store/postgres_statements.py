"""The statements of the store for PostgreSQL, compiled from the definitions: change those instead.

`python -m tests.support.compiled_statements` writes this module. A statement is found by its text for SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping

from loopline.store import statements

STATEMENTS: Mapping[str, str] = {
    statements.SELECT_META: """SELECT meta.value FROM meta WHERE meta.key = %(key)s::VARCHAR COLLATE "C\"""",
    statements.INSERT_META: """INSERT INTO meta (key, value) VALUES (%(key)s::VARCHAR COLLATE "C", %(value)s::VARCHAR
COLLATE "C")""",
    statements.DELETE_META: """DELETE FROM meta WHERE meta.key = %(name)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_STATE: """SELECT conversations.id, conversations.turns, conversations.term, (SELECT max(blocks.seq)
AS max_1 FROM blocks WHERE blocks.conversation = conversations.id) AS anon_1, (SELECT
max(segments.last) AS max_2 FROM segments WHERE segments.conversation = conversations.id)
AS anon_2, tombstones.at, head_row.digest, head_row.bytes FROM conversations LEFT OUTER
JOIN tombstones ON tombstones.conversation = conversations.id LEFT OUTER JOIN blocks AS
head_row ON head_row.id = coalesce((SELECT newest.id FROM blocks AS newest WHERE
newest.conversation = conversations.id ORDER BY newest.seq DESC LIMIT 1::INTEGER), (SELECT
shown.id FROM segments JOIN blocks AS shown ON shown.conversation = segments.owner AND
shown.seq = segments.last WHERE segments.conversation = conversations.id ORDER BY
segments.last DESC LIMIT 1::INTEGER)) WHERE conversations.tenant = %(tenant)s::VARCHAR
COLLATE "C" AND conversations.project = %(project)s::VARCHAR COLLATE "C" AND
conversations."user" = %(user)s::VARCHAR COLLATE "C" AND conversations.name =
%(name)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_STATES: """SELECT conversations.id, conversations.turns, conversations.term, (SELECT max(blocks.seq)
AS max_1 FROM blocks WHERE blocks.conversation = conversations.id) AS anon_1, (SELECT
max(segments.last) AS max_2 FROM segments WHERE segments.conversation = conversations.id)
AS anon_2, tombstones.at, head_row.digest, head_row.bytes FROM conversations LEFT OUTER
JOIN tombstones ON tombstones.conversation = conversations.id LEFT OUTER JOIN blocks AS
head_row ON head_row.id = coalesce((SELECT newest.id FROM blocks AS newest WHERE
newest.conversation = conversations.id ORDER BY newest.seq DESC LIMIT 1::INTEGER), (SELECT
shown.id FROM segments JOIN blocks AS shown ON shown.conversation = segments.owner AND
shown.seq = segments.last WHERE segments.conversation = conversations.id ORDER BY
segments.last DESC LIMIT 1::INTEGER)) WHERE conversations.id = ANY (ARRAY(SELECT
CAST(anon_3.value AS BIGINT) FROM json_array_elements_text(%(rows)s::json) AS anon_3))""",
    statements.SELECT_HEADS: """SELECT conversations.id, conversations.term, (SELECT max(blocks.seq) AS max_1 FROM blocks
WHERE blocks.conversation = conversations.id) AS anon_1 FROM conversations WHERE
conversations.id = ANY (ARRAY(SELECT CAST(anon_2.value AS BIGINT) FROM
json_array_elements_text(%(rows)s::json) AS anon_2))""",
    statements.SELECT_ID: """SELECT conversations.id FROM conversations WHERE conversations.tenant =
%(tenant)s::VARCHAR COLLATE "C" AND conversations.project = %(project)s::VARCHAR COLLATE
"C" AND conversations."user" = %(user)s::VARCHAR COLLATE "C" AND conversations.name =
%(name)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_FORGOTTEN_AT: """SELECT tombstones.at FROM tombstones JOIN conversations ON tombstones.conversation =
conversations.id WHERE conversations.tenant = %(tenant)s::VARCHAR COLLATE "C" AND
conversations.project = %(project)s::VARCHAR COLLATE "C" AND conversations."user" =
%(user)s::VARCHAR COLLATE "C" AND conversations.name = %(name)s::VARCHAR COLLATE "C\"""",
    statements.INSERT_CONVERSATION: """INSERT INTO conversations (tenant, project, "user", name, uid, title, turns, term,
started_at) VALUES (%(tenant)s::VARCHAR COLLATE "C", %(project)s::VARCHAR COLLATE "C",
%(user)s::VARCHAR COLLATE "C", %(name)s::VARCHAR COLLATE "C", %(uid)s::VARCHAR COLLATE
"C", ''::VARCHAR COLLATE "C", 0::BIGINT, 0::BIGINT, 0::BIGINT) RETURNING conversations.id""",
    statements.UPDATE_START: """UPDATE conversations SET title=%(title)s::VARCHAR COLLATE "C", turns=%(turns)s::BIGINT,
started_at=%(started)s::BIGINT WHERE conversations.id = %(row)s::BIGINT""",
    statements.UPDATE_TURNS: """UPDATE conversations SET turns=%(turns)s::BIGINT WHERE conversations.id = %(row)s::BIGINT""",
    statements.UPDATE_TERM: """UPDATE conversations SET term=%(term)s::BIGINT WHERE conversations.id = %(row)s::BIGINT""",
    statements.INSERT_BLOCK: """INSERT INTO blocks (conversation, seq, turn, round, n, ts, term, type, version, body,
blob, digest, bytes) VALUES (%(conversation)s::BIGINT, %(seq)s::BIGINT, %(turn)s::BIGINT,
%(round)s::BIGINT, %(n)s::BIGINT, %(ts)s::BIGINT, %(term)s::BIGINT, %(type)s::VARCHAR
COLLATE "C", %(version)s::BIGINT, %(body)s::VARCHAR COLLATE "C", nullif(%(blob)s, ''),
%(digest)s, %(bytes)s::BIGINT) RETURNING blocks.id""",
    statements.INSERT_APPEND: """INSERT INTO appends (conversation, key, last_seq) VALUES (%(conversation)s::BIGINT,
%(key)s::VARCHAR COLLATE "C", %(last_seq)s::BIGINT)""",
    statements.SELECT_APPEND: """SELECT appends.last_seq FROM appends WHERE appends.conversation = %(conversation)s::BIGINT
AND appends.key = %(key)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_TURNS: """SELECT appends.key, blocks.turn FROM appends JOIN blocks ON blocks.conversation =
appends.conversation AND blocks.seq = appends.last_seq WHERE appends.conversation =
%(conversation)s::BIGINT AND appends.key IN (SELECT anon_1.value FROM
json_array_elements_text(%(keys)s::json) AS anon_1)""",
    statements.COUNT_TYPES: """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM blocks WHERE blocks.conversation
= %(conversation)s::BIGINT AND blocks.turn = ANY (ARRAY(SELECT CAST(anon_1.value AS
BIGINT) FROM json_array_elements_text(%(turns)s::json) AS anon_1)) GROUP BY blocks.turn,
blocks.type""",
    statements.COUNT_TYPES_SINCE: """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM blocks WHERE blocks.conversation
= %(conversation)s::BIGINT AND blocks.turn = ANY (ARRAY(SELECT CAST(anon_1.value AS
BIGINT) FROM json_array_elements_text(%(turns)s::json) AS anon_1)) AND blocks.seq >
%(head)s::BIGINT GROUP BY blocks.turn, blocks.type""",
    statements.COUNT_INHERITED_TYPES: """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM segments JOIN blocks ON
segments.owner = blocks.conversation WHERE segments.conversation =
%(conversation)s::BIGINT AND blocks.turn = ANY (ARRAY(SELECT CAST(anon_1.value AS BIGINT)
FROM json_array_elements_text(%(turns)s::json) AS anon_1)) AND blocks.seq + 0::BIGINT
BETWEEN segments.first AND segments.last GROUP BY blocks.turn, blocks.type""",
    statements.SELECT_SEGMENTS: """SELECT conversations.id, segments.owner, segments.first, segments.last FROM conversations
LEFT OUTER JOIN segments ON segments.conversation = conversations.id WHERE
conversations.tenant = %(tenant)s::VARCHAR COLLATE "C" AND conversations.project =
%(project)s::VARCHAR COLLATE "C" AND conversations."user" = %(user)s::VARCHAR COLLATE "C"
AND conversations.name = %(name)s::VARCHAR COLLATE "C" ORDER BY segments.last""",
    statements.SELECT_BLOCKS: """SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, convert_to(blocks.body, 'UTF8') AS body, blocks.blob,
blocks.digest FROM blocks WHERE blocks.conversation = %(owner)s::BIGINT AND blocks.seq >
%(after)s::BIGINT AND blocks.seq <= %(until)s::BIGINT ORDER BY blocks.seq LIMIT
%(limit)s::BIGINT""",
    statements.SELECT_BLOCKS_OF_TYPES: """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) COLLATE "C" AS name,
CAST(anon_1.value AS TEXT) COLLATE "C" || '.'::VARCHAR COLLATE "C" AS first,
CAST(anon_1.value AS TEXT) COLLATE "C" || '/'::VARCHAR COLLATE "C" AS last FROM
json_array_elements_text(%(types)s::json) AS anon_1) SELECT blocks.seq, blocks.turn,
blocks.round, blocks.n, blocks.ts, blocks.term, blocks.type, blocks.version,
convert_to(blocks.body, 'UTF8') AS body, blocks.blob, blocks.digest FROM blocks WHERE
blocks.conversation = %(owner)s::BIGINT AND blocks.seq > %(after)s::BIGINT AND blocks.seq
<= %(until)s::BIGINT AND (%(types)s::VARCHAR COLLATE "C" IS NULL OR (EXISTS (SELECT * FROM
types WHERE blocks.type = types.name OR blocks.type >= types.first AND blocks.type <
types.last))) ORDER BY blocks.seq LIMIT %(limit)s::BIGINT""",
    statements.SELECT_BLOCKS_OF_TURN: """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) COLLATE "C" AS name,
CAST(anon_1.value AS TEXT) COLLATE "C" || '.'::VARCHAR COLLATE "C" AS first,
CAST(anon_1.value AS TEXT) COLLATE "C" || '/'::VARCHAR COLLATE "C" AS last FROM
json_array_elements_text(%(types)s::json) AS anon_1) SELECT blocks.seq, blocks.turn,
blocks.round, blocks.n, blocks.ts, blocks.term, blocks.type, blocks.version,
convert_to(blocks.body, 'UTF8') AS body, blocks.blob, blocks.digest FROM blocks WHERE
blocks.conversation = %(owner)s::BIGINT AND blocks.seq > %(after)s::BIGINT AND blocks.seq
<= %(until)s::BIGINT AND (%(types)s::VARCHAR COLLATE "C" IS NULL OR (EXISTS (SELECT * FROM
types WHERE blocks.type = types.name OR blocks.type >= types.first AND blocks.type <
types.last))) AND blocks.turn = %(turn)s::BIGINT ORDER BY blocks.seq LIMIT
%(limit)s::BIGINT""",
    statements.SELECT_BLOCKS_FROM_END: """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) COLLATE "C" AS name,
CAST(anon_1.value AS TEXT) COLLATE "C" || '.'::VARCHAR COLLATE "C" AS first,
CAST(anon_1.value AS TEXT) COLLATE "C" || '/'::VARCHAR COLLATE "C" AS last FROM
json_array_elements_text(%(types)s::json) AS anon_1) SELECT blocks.seq, blocks.turn,
blocks.round, blocks.n, blocks.ts, blocks.term, blocks.type, blocks.version,
convert_to(blocks.body, 'UTF8') AS body, blocks.blob, blocks.digest FROM blocks WHERE
blocks.conversation = %(owner)s::BIGINT AND blocks.seq > %(after)s::BIGINT AND blocks.seq
<= %(until)s::BIGINT AND (%(types)s::VARCHAR COLLATE "C" IS NULL OR (EXISTS (SELECT * FROM
types WHERE blocks.type = types.name OR blocks.type >= types.first AND blocks.type <
types.last))) AND (%(turn)s::BIGINT IS NULL OR blocks.turn = %(turn)s::BIGINT) ORDER BY
blocks.seq DESC LIMIT %(limit)s::BIGINT""",
    statements.SELECT_BLOCKS_AT: """SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, convert_to(blocks.body, 'UTF8') AS body, blocks.blob,
blocks.digest FROM blocks WHERE blocks.conversation = %(owner)s::BIGINT AND blocks.seq +
0::BIGINT > %(after)s::BIGINT AND blocks.seq + 0::BIGINT <= %(until)s::BIGINT AND
blocks.seq = ANY (ARRAY(SELECT CAST(anon_1.value AS BIGINT) FROM
json_array_elements_text(%(positions)s::json) AS anon_1)) ORDER BY blocks.seq LIMIT
%(limit)s::BIGINT""",
    statements.SELECT_SUMMARY: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0::INTEGER) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT
newest.id FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY
newest.seq DESC LIMIT 1::INTEGER), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1::INTEGER))
WHERE conversations.tenant = %(tenant)s::VARCHAR COLLATE "C" AND conversations.project =
%(project)s::VARCHAR COLLATE "C" AND conversations."user" = %(user)s::VARCHAR COLLATE "C"
AND conversations.name = %(name)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_SUMMARIES: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0::INTEGER) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT
newest.id FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY
newest.seq DESC LIMIT 1::INTEGER), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1::INTEGER))
WHERE NOT (rtrim(conversations.name, '0123456789.'::VARCHAR) != conversations.name AND
length(rtrim(conversations.name, '0123456789.'::VARCHAR)) > 2::INTEGER AND
substr(rtrim(conversations.name, '0123456789.'::VARCHAR), length(rtrim(conversations.name,
'0123456789.'::VARCHAR)) - 1::INTEGER) = '~c'::VARCHAR) AND (%(tenant)s::VARCHAR COLLATE
"C" IS NULL OR conversations.tenant = %(tenant)s::VARCHAR COLLATE "C") AND
(%(project)s::VARCHAR COLLATE "C" IS NULL OR conversations.project = %(project)s::VARCHAR
COLLATE "C") AND (%(user)s::VARCHAR COLLATE "C" IS NULL OR conversations."user" =
%(user)s::VARCHAR COLLATE "C") AND (%(after)s::BIGINT IS NULL OR blocks.ts >
%(after)s::BIGINT) AND (%(before)s::BIGINT IS NULL OR blocks.ts < %(before)s::BIGINT)
ORDER BY blocks.ts DESC, blocks.id DESC LIMIT %(limit)s::BIGINT""",
    statements.SELECT_UNFINISHED: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0::INTEGER) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT
newest.id FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY
newest.seq DESC LIMIT 1::INTEGER), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1::INTEGER))
WHERE NOT (rtrim(conversations.name, '0123456789.'::VARCHAR) != conversations.name AND
length(rtrim(conversations.name, '0123456789.'::VARCHAR)) > 2::INTEGER AND
substr(rtrim(conversations.name, '0123456789.'::VARCHAR), length(rtrim(conversations.name,
'0123456789.'::VARCHAR)) - 1::INTEGER) = '~c'::VARCHAR) AND conversations.id IN (SELECT
leases.conversation FROM leases) AND coalesce((SELECT ends.turn FROM blocks AS ends WHERE
ends.conversation = conversations.id AND ends.type = 'react.exit'::VARCHAR COLLATE "C"
ORDER BY ends.seq DESC LIMIT 1::INTEGER), 0::INTEGER) < conversations.turns ORDER BY
blocks.ts DESC, blocks.id DESC""",
    statements.SELECT_DIGESTS: """SELECT blocks.seq, blocks.digest FROM blocks WHERE blocks.conversation = %(owner)s::BIGINT
AND blocks.seq + 0::BIGINT > %(after)s::BIGINT AND blocks.seq + 0::BIGINT <=
%(until)s::BIGINT AND blocks.seq = ANY (ARRAY(SELECT CAST(anon_1.value AS BIGINT) FROM
json_array_elements_text(%(positions)s::json) AS anon_1))""",
    statements.SELECT_LEASE: """SELECT leases.generation, leases.boot, leases.ends FROM leases WHERE leases.conversation =
%(row)s::BIGINT""",
    statements.INSERT_LEASE: """INSERT INTO leases (conversation, generation, boot, ends) VALUES
(%(conversation)s::BIGINT, %(generation)s::BIGINT, %(boot)s::VARCHAR COLLATE "C",
%(ends)s::BIGINT)""",
    statements.UPDATE_LEASE: """UPDATE leases SET generation=%(generation)s::BIGINT, boot=%(boot)s::VARCHAR COLLATE "C",
ends=%(ends)s::BIGINT WHERE leases.conversation = %(row)s::BIGINT""",
    statements.RENEW_LEASE: """UPDATE leases SET ends=%(ends)s::BIGINT WHERE leases.conversation = %(row)s::BIGINT""",
    statements.SELECT_INHERITED: """SELECT segments.owner, segments.first, segments.last FROM segments WHERE
segments.conversation = %(row)s::BIGINT ORDER BY segments.last""",
    statements.SELECT_SHOWN: """SELECT segments.owner, segments.first, segments.last FROM segments WHERE
segments.conversation = %(row)s::BIGINT AND segments.first <= %(seq)s::BIGINT UNION ALL
SELECT 0::BIGINT AS owner, (SELECT coalesce(max(segments.last), 0::INTEGER) + 1::BIGINT AS
anon_1 FROM segments WHERE segments.conversation = %(row)s::BIGINT) AS first,
%(seq)s::BIGINT AS last WHERE (SELECT coalesce(max(segments.last), 0::INTEGER) + 1::BIGINT
AS anon_1 FROM segments WHERE segments.conversation = %(row)s::BIGINT) <= %(seq)s::BIGINT""",
    statements.INSERT_SEGMENT: """INSERT INTO segments (conversation, last, first, owner) VALUES (%(conversation)s::BIGINT,
%(last)s::BIGINT, %(first)s::BIGINT, %(owner)s::BIGINT)""",
    statements.SELECT_NEWEST_TURN: """SELECT blocks.turn FROM blocks WHERE blocks.conversation = %(owner)s::BIGINT AND blocks.id
<= (SELECT blocks.id FROM blocks WHERE blocks.conversation = %(owner)s::BIGINT AND
blocks.seq = %(last)s::BIGINT) ORDER BY blocks.turn DESC LIMIT 1::INTEGER""",
    statements.SELECT_ORIGIN: """SELECT conversations.title, conversations.started_at FROM conversations WHERE
conversations.id = %(row)s::BIGINT""",
    statements.SELECT_FORKS: """SELECT conversations.id, conversations.name FROM conversations WHERE conversations.id IN
(SELECT segments.conversation FROM segments WHERE segments.owner = %(owner)s::BIGINT)
ORDER BY (SELECT max(segments.last) AS max_1 FROM segments WHERE segments.conversation =
conversations.id) DESC, conversations.id DESC""",
    statements.SELECT_KEY: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name FROM conversations WHERE conversations.id = %(row)s::BIGINT""",
    statements.SELECT_NAMED_BETWEEN: """SELECT conversations.id, conversations.name FROM conversations WHERE conversations.tenant
= %(tenant)s::VARCHAR COLLATE "C" AND conversations.project = %(project)s::VARCHAR COLLATE
"C" AND conversations."user" = %(user)s::VARCHAR COLLATE "C" AND conversations.name >
%(first)s::VARCHAR COLLATE "C" AND conversations.name < %(last)s::VARCHAR COLLATE "C" AND
NOT (EXISTS (SELECT * FROM tombstones WHERE tombstones.conversation = conversations.id))
ORDER BY conversations.id""",
    statements.INSERT_TOMBSTONE: """INSERT INTO tombstones (conversation, at) VALUES (%(conversation)s::BIGINT,
%(at)s::BIGINT)""",
    statements.INSERT_PURGES: """INSERT INTO purges (blob) SELECT DISTINCT blocks.blob FROM blocks WHERE
blocks.conversation = %(row)s::BIGINT AND blocks.blob IS NOT NULL AND NOT (EXISTS (SELECT
* FROM purges WHERE purges.blob = blocks.blob))""",
    statements.DELETE_CONTENT[
        0
    ]: """DELETE FROM blocks WHERE blocks.conversation = %(row)s::BIGINT""",
    statements.DELETE_CONTENT[
        1
    ]: """DELETE FROM appends WHERE appends.conversation = %(row)s::BIGINT""",
    statements.DELETE_CONTENT[
        2
    ]: """DELETE FROM segments WHERE segments.conversation = %(row)s::BIGINT""",
    statements.CLEAR_CONVERSATION: """UPDATE conversations SET title=''::VARCHAR COLLATE "C", term=(conversations.term +
1::BIGINT), started_at=0::BIGINT WHERE conversations.id = %(row)s::BIGINT""",
    statements.SELECT_PURGEABLE: """SELECT purges.blob FROM purges WHERE NOT (EXISTS (SELECT * FROM blocks WHERE blocks.blob =
purges.blob))""",
    statements.DELETE_PURGES: """DELETE FROM purges""",
    statements.SELECT_FORGETTING: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name FROM meta JOIN conversations ON conversations.id = CAST(meta.value AS
BIGINT) WHERE meta.key > %(first)s::VARCHAR COLLATE "C" AND meta.key < %(last)s::VARCHAR
COLLATE "C" ORDER BY conversations.id""",
    statements.SELECT_SCHEDULED: """SELECT conversations.tenant, conversations.project, conversations."user",
conversations.name, meta.value FROM meta JOIN conversations ON conversations.id =
CAST(replace(meta.key, %(first)s, '') AS BIGINT) WHERE meta.key > %(first)s::VARCHAR
COLLATE "C" AND meta.key < %(last)s::VARCHAR COLLATE "C\"""",
    statements.SELECT_LAST_ID: """SELECT coalesce(max(blocks.id), 0::INTEGER) AS coalesce_1 FROM blocks""",
    statements.SELECT_INPUTS_AFTER: """SELECT DISTINCT conversations.tenant, conversations.project, conversations."user",
conversations.name FROM blocks JOIN conversations ON blocks.conversation =
conversations.id WHERE blocks.id > %(last)s::BIGINT AND (blocks.type IN ('user.prompt',
'user.answer', 'user.retry', 'user.schedule') OR blocks.type = 'turn.header' AND
blocks.body LIKE '%%"handed_over"_true%%')""",
    statements.SELECT_REFERENCED_BLOBS: """SELECT DISTINCT blocks.blob FROM blocks WHERE blocks.blob IS NOT NULL""",
    statements.SELECT_CONVERSATIONS: """SELECT conversations.id, conversations.tenant, conversations.project,
conversations."user", conversations.name, tombstones.at FROM conversations LEFT OUTER JOIN
tombstones ON tombstones.conversation = conversations.id ORDER BY conversations.id""",
    statements.SELECT_CONVERSATION: """SELECT conversations.id, conversations.tenant, conversations.project,
conversations."user", conversations.name, tombstones.at FROM conversations LEFT OUTER JOIN
tombstones ON tombstones.conversation = conversations.id WHERE conversations.tenant =
%(tenant)s::VARCHAR COLLATE "C" AND conversations.project = %(project)s::VARCHAR COLLATE
"C" AND conversations."user" = %(user)s::VARCHAR COLLATE "C" AND conversations.name =
%(name)s::VARCHAR COLLATE "C" ORDER BY conversations.id""",
    statements.SELECT_LINKS: """SELECT blocks.id, blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.version, convert_to(blocks.type, 'UTF8') AS type, convert_to(blocks.body, 'UTF8')
AS body, blocks.blob, blocks.digest FROM blocks WHERE blocks.conversation =
%(owner)s::BIGINT AND blocks.seq > %(after)s::BIGINT ORDER BY blocks.seq LIMIT
%(limit)s::BIGINT""",
}
CREATE_TABLES: Mapping[str, tuple[str, ...]] = {
    "conversations": (
        """CREATE TABLE conversations ( id BIGSERIAL NOT NULL, tenant TEXT COLLATE "C" NOT NULL,
project TEXT COLLATE "C" NOT NULL, "user" TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C"
NOT NULL, uid TEXT COLLATE "C" NOT NULL, title TEXT COLLATE "C" NOT NULL, turns BIGINT NOT
NULL, term BIGINT NOT NULL, started_at BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (tenant,
project, "user", name), CHECK (id > 0), UNIQUE (uid) )""",
    ),
    "meta": (
        """CREATE TABLE meta ( key TEXT COLLATE "C" NOT NULL, value TEXT COLLATE "C" NOT NULL,
PRIMARY KEY (key) )""",
    ),
    "purges": ("""CREATE TABLE purges ( blob TEXT COLLATE "C" NOT NULL, PRIMARY KEY (blob) )""",),
    "appends": (
        """CREATE TABLE appends ( conversation BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL,
last_seq BIGINT NOT NULL, PRIMARY KEY (conversation, key), FOREIGN KEY(conversation)
REFERENCES conversations (id) )""",
    ),
    "blocks": (
        """CREATE TABLE blocks ( id BIGSERIAL NOT NULL, conversation BIGINT NOT NULL, seq BIGINT NOT
NULL, turn BIGINT NOT NULL, round BIGINT NOT NULL, n BIGINT NOT NULL, ts BIGINT NOT NULL,
term BIGINT NOT NULL, type TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, body TEXT
COLLATE "C" NOT NULL, blob TEXT COLLATE "C", digest BYTEA, bytes BIGINT, PRIMARY KEY (id),
UNIQUE (conversation, seq), CHECK (id > 0), FOREIGN KEY(conversation) REFERENCES
conversations (id) )""",
        """CREATE INDEX blocks_by_blob ON blocks (blob) WHERE blob IS NOT NULL""",
        """CREATE INDEX blocks_by_turn ON blocks (conversation, turn)""",
    ),
    "leases": (
        """CREATE TABLE leases ( conversation BIGINT NOT NULL, generation BIGINT NOT NULL, boot TEXT
COLLATE "C" NOT NULL, ends BIGINT NOT NULL, PRIMARY KEY (conversation), FOREIGN
KEY(conversation) REFERENCES conversations (id) )""",
    ),
    "segments": (
        """CREATE TABLE segments ( conversation BIGINT NOT NULL, last BIGINT NOT NULL, first BIGINT
NOT NULL, owner BIGINT NOT NULL, PRIMARY KEY (conversation, last), FOREIGN
KEY(conversation) REFERENCES conversations (id), FOREIGN KEY(owner) REFERENCES
conversations (id) )""",
        """CREATE INDEX segments_by_owner ON segments (owner)""",
    ),
    "tombstones": (
        """CREATE TABLE tombstones ( conversation BIGINT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY
(conversation), FOREIGN KEY(conversation) REFERENCES conversations (id) )""",
    ),
}
