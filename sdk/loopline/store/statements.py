"""Every SQL statement of the store as text, compiled from the definitions: change those instead.

`python -m tests.support.compiled_statements` writes this module.
"""

from __future__ import annotations

from collections.abc import Mapping

SELECT_META = """SELECT meta.value FROM meta WHERE meta."key" = :key"""
INSERT_META = """INSERT INTO meta ("key", value) VALUES (:key, :value)"""
DELETE_META = """DELETE FROM meta WHERE meta."key" = :name"""
SELECT_STATE = """SELECT conversations.id, conversations.turns, conversations.term, (SELECT max(blocks.seq)
AS max_1 FROM blocks WHERE blocks.conversation = conversations.id) AS anon_1, (SELECT
max(segments.last) AS max_2 FROM segments WHERE segments.conversation = conversations.id)
AS anon_2, tombstones.at, head_row.digest, head_row.bytes FROM conversations LEFT OUTER
JOIN tombstones ON tombstones.conversation = conversations.id LEFT OUTER JOIN blocks AS
head_row ON head_row.id = coalesce((SELECT newest.id FROM blocks AS newest WHERE
newest.conversation = conversations.id ORDER BY newest.seq DESC LIMIT 1 OFFSET 0), (SELECT
shown.id FROM segments JOIN blocks AS shown ON shown.conversation = segments.owner AND
shown.seq = segments.last WHERE segments.conversation = conversations.id ORDER BY
segments.last DESC LIMIT 1 OFFSET 0)) WHERE conversations.tenant = :tenant AND
conversations.project = :project AND conversations.user = :user AND conversations.name =
:name"""
SELECT_STATES = """SELECT conversations.id, conversations.turns, conversations.term, (SELECT max(blocks.seq)
AS max_1 FROM blocks WHERE blocks.conversation = conversations.id) AS anon_1, (SELECT
max(segments.last) AS max_2 FROM segments WHERE segments.conversation = conversations.id)
AS anon_2, tombstones.at, head_row.digest, head_row.bytes FROM conversations LEFT OUTER
JOIN tombstones ON tombstones.conversation = conversations.id LEFT OUTER JOIN blocks AS
head_row ON head_row.id = coalesce((SELECT newest.id FROM blocks AS newest WHERE
newest.conversation = conversations.id ORDER BY newest.seq DESC LIMIT 1 OFFSET 0), (SELECT
shown.id FROM segments JOIN blocks AS shown ON shown.conversation = segments.owner AND
shown.seq = segments.last WHERE segments.conversation = conversations.id ORDER BY
segments.last DESC LIMIT 1 OFFSET 0)) WHERE conversations.id IN (SELECT anon_3.value FROM
json_each(:rows) AS anon_3)"""
SELECT_HEADS = """SELECT conversations.id, conversations.term, (SELECT max(blocks.seq) AS max_1 FROM blocks
WHERE blocks.conversation = conversations.id) AS anon_1 FROM conversations WHERE
conversations.id IN (SELECT anon_2.value FROM json_each(:rows) AS anon_2)"""
SELECT_ID = """SELECT conversations.id FROM conversations WHERE conversations.tenant = :tenant AND
conversations.project = :project AND conversations.user = :user AND conversations.name =
:name"""
SELECT_FORGOTTEN_AT = """SELECT tombstones.at FROM tombstones JOIN conversations ON tombstones.conversation =
conversations.id WHERE conversations.tenant = :tenant AND conversations.project = :project
AND conversations.user = :user AND conversations.name = :name"""
INSERT_CONVERSATION = """INSERT INTO conversations (tenant, project, user, name, uid, title, turns, term,
started_at) VALUES (:tenant, :project, :user, :name, :uid, '', 0, 0, 0) RETURNING id"""
UPDATE_START = """UPDATE conversations SET title=:title, turns=:turns, started_at=:started WHERE
conversations.id = :row"""
UPDATE_TURNS = """UPDATE conversations SET turns=:turns WHERE conversations.id = :row"""
UPDATE_TERM = """UPDATE conversations SET term=:term WHERE conversations.id = :row"""
INSERT_BLOCK = """INSERT INTO blocks (conversation, seq, turn, round, n, ts, term, type, version, body,
blob, digest, bytes) VALUES (:conversation, :seq, :turn, :round, :n, :ts, :term, :type,
:version, :body, nullif(:blob, ''), :digest, :bytes)"""
INSERT_APPEND = """INSERT INTO appends (conversation, "key", last_seq) VALUES (:conversation, :key,
:last_seq)"""
SELECT_APPEND = """SELECT appends.last_seq FROM appends WHERE appends.conversation = :conversation AND
appends."key" = :key"""
SELECT_TURNS = """SELECT appends."key", blocks.turn FROM appends JOIN blocks ON blocks.conversation =
appends.conversation AND blocks.seq = appends.last_seq WHERE appends.conversation =
:conversation AND appends."key" IN (SELECT anon_1.value FROM json_each(:keys) AS anon_1)"""
COUNT_TYPES = """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM blocks WHERE blocks.conversation
= :conversation AND blocks.turn IN (SELECT anon_1.value FROM json_each(:turns) AS anon_1)
GROUP BY blocks.turn, blocks.type"""
COUNT_TYPES_SINCE = """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM blocks WHERE blocks.conversation
= :conversation AND blocks.turn IN (SELECT anon_1.value FROM json_each(:turns) AS anon_1)
AND blocks.seq > :head GROUP BY blocks.turn, blocks.type"""
COUNT_INHERITED_TYPES = """SELECT blocks.turn, blocks.type, count(*) AS count_1 FROM segments JOIN blocks ON
segments.owner = blocks.conversation WHERE segments.conversation = :conversation AND
blocks.turn IN (SELECT anon_1.value FROM json_each(:turns) AS anon_1) AND blocks.seq + 0
BETWEEN segments.first AND segments.last GROUP BY blocks.turn, blocks.type"""
SELECT_SEGMENTS = """SELECT conversations.id, segments.owner, segments.first, segments.last FROM conversations
LEFT OUTER JOIN segments ON segments.conversation = conversations.id WHERE
conversations.tenant = :tenant AND conversations.project = :project AND conversations.user
= :user AND conversations.name = :name ORDER BY segments.last"""
SELECT_BLOCKS = """SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, CAST(blocks.body AS BLOB) AS body, blocks.blob, blocks.digest
FROM blocks WHERE blocks.conversation = :owner AND blocks.seq > :after AND blocks.seq <=
:until ORDER BY blocks.seq LIMIT :limit OFFSET 0"""
SELECT_BLOCKS_OF_TYPES = """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) AS name, CAST(anon_1.value
AS TEXT) || '.' AS first, CAST(anon_1.value AS TEXT) || '/' AS last FROM json_each(:types)
AS anon_1) SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, CAST(blocks.body AS BLOB) AS body, blocks.blob, blocks.digest
FROM blocks WHERE blocks.conversation = :owner AND blocks.seq > :after AND blocks.seq <=
:until AND (:types IS NULL OR (EXISTS (SELECT * FROM types WHERE blocks.type = types.name
OR blocks.type >= types.first AND blocks.type < types.last))) ORDER BY blocks.seq LIMIT
:limit OFFSET 0"""
SELECT_BLOCKS_OF_TURN = """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) AS name, CAST(anon_1.value
AS TEXT) || '.' AS first, CAST(anon_1.value AS TEXT) || '/' AS last FROM json_each(:types)
AS anon_1) SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, CAST(blocks.body AS BLOB) AS body, blocks.blob, blocks.digest
FROM blocks WHERE blocks.conversation = :owner AND blocks.seq > :after AND blocks.seq <=
:until AND (:types IS NULL OR (EXISTS (SELECT * FROM types WHERE blocks.type = types.name
OR blocks.type >= types.first AND blocks.type < types.last))) AND blocks.turn = :turn
ORDER BY blocks.seq LIMIT :limit OFFSET 0"""
SELECT_BLOCKS_FROM_END = """WITH types AS MATERIALIZED (SELECT CAST(anon_1.value AS TEXT) AS name, CAST(anon_1.value
AS TEXT) || '.' AS first, CAST(anon_1.value AS TEXT) || '/' AS last FROM json_each(:types)
AS anon_1) SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, CAST(blocks.body AS BLOB) AS body, blocks.blob, blocks.digest
FROM blocks WHERE blocks.conversation = :owner AND blocks.seq > :after AND blocks.seq <=
:until AND (:types IS NULL OR (EXISTS (SELECT * FROM types WHERE blocks.type = types.name
OR blocks.type >= types.first AND blocks.type < types.last))) AND (:turn IS NULL OR
blocks.turn = :turn) ORDER BY blocks.seq DESC LIMIT :limit OFFSET 0"""
SELECT_BLOCKS_AT = """SELECT blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.type, blocks.version, CAST(blocks.body AS BLOB) AS body, blocks.blob, blocks.digest
FROM blocks WHERE blocks.conversation = :owner AND blocks.seq + 0 > :after AND blocks.seq
+ 0 <= :until AND blocks.seq IN (SELECT anon_1.value FROM json_each(:positions) AS anon_1)
ORDER BY blocks.seq LIMIT :limit OFFSET 0"""
SELECT_SUMMARY = """SELECT conversations.tenant, conversations.project, conversations.user,
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT newest.id
FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY newest.seq
DESC LIMIT 1 OFFSET 0), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1 OFFSET 0))
WHERE conversations.tenant = :tenant AND conversations.project = :project AND
conversations.user = :user AND conversations.name = :name"""
SELECT_SUMMARIES = """SELECT conversations.tenant, conversations.project, conversations.user,
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT newest.id
FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY newest.seq
DESC LIMIT 1 OFFSET 0), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1 OFFSET 0))
WHERE NOT (rtrim(conversations.name, '0123456789.') != conversations.name AND
length(rtrim(conversations.name, '0123456789.')) > 2 AND substr(rtrim(conversations.name,
'0123456789.'), length(rtrim(conversations.name, '0123456789.')) - 1) = '~c') AND (:tenant
IS NULL OR conversations.tenant = :tenant) AND (:project IS NULL OR conversations.project
= :project) AND (:user IS NULL OR conversations.user = :user) AND (:after IS NULL OR
blocks.ts > :after) AND (:before IS NULL OR blocks.ts < :before) ORDER BY blocks.ts DESC,
blocks.id DESC LIMIT :limit OFFSET 0"""
SELECT_UNFINISHED = """SELECT conversations.tenant, conversations.project, conversations.user,
conversations.name, conversations.uid, blocks.seq, conversations.turns,
conversations.title, conversations.started_at, blocks.ts, coalesce((SELECT
max(segments.last) AS max_1 FROM segments WHERE segments.conversation = conversations.id),
0) AS inherited FROM conversations JOIN blocks ON blocks.id = coalesce((SELECT newest.id
FROM blocks AS newest WHERE newest.conversation = conversations.id ORDER BY newest.seq
DESC LIMIT 1 OFFSET 0), (SELECT shown.id FROM segments JOIN blocks AS shown ON
shown.conversation = segments.owner AND shown.seq = segments.last WHERE
segments.conversation = conversations.id ORDER BY segments.last DESC LIMIT 1 OFFSET 0))
WHERE NOT (rtrim(conversations.name, '0123456789.') != conversations.name AND
length(rtrim(conversations.name, '0123456789.')) > 2 AND substr(rtrim(conversations.name,
'0123456789.'), length(rtrim(conversations.name, '0123456789.')) - 1) = '~c') AND
conversations.id IN (SELECT leases.conversation FROM leases) AND coalesce((SELECT
ends.turn FROM blocks AS ends WHERE ends.conversation = conversations.id AND ends.type =
'react.exit' ORDER BY ends.seq DESC LIMIT 1 OFFSET 0), 0) < conversations.turns AND
coalesce((SELECT ends.turn FROM blocks AS ends WHERE ends.conversation = conversations.id
AND ends.type = 'react.exit' ORDER BY ends.seq DESC LIMIT 1 OFFSET 0), 0) + (SELECT
count(*) AS count_1 FROM blocks AS prompts WHERE prompts.conversation = conversations.id
AND prompts.turn > coalesce((SELECT ends.turn FROM blocks AS ends WHERE ends.conversation
= conversations.id AND ends.type = 'react.exit' ORDER BY ends.seq DESC LIMIT 1 OFFSET 0),
0) AND prompts.type = 'user.prompt' AND (EXISTS (SELECT * FROM blocks AS others WHERE
others.conversation = prompts.conversation AND others.turn = prompts.turn AND others.type
= 'user.recalled' AND others.body = ('{"said":' || CAST(prompts.seq AS TEXT) || '}'))) AND
NOT (EXISTS (SELECT * FROM blocks AS others WHERE others.conversation =
prompts.conversation AND others.turn = prompts.turn AND others.type = 'turn.header'))) <
conversations.turns ORDER BY blocks.ts DESC, blocks.id DESC"""
SELECT_DIGESTS = """SELECT blocks.seq, blocks.digest FROM blocks WHERE blocks.conversation = :owner AND
blocks.seq + 0 > :after AND blocks.seq + 0 <= :until AND blocks.seq IN (SELECT
anon_1.value FROM json_each(:positions) AS anon_1)"""
SELECT_LEASE = """SELECT leases.generation, leases.boot, leases.ends FROM leases WHERE leases.conversation =
:row"""
INSERT_LEASE = """INSERT INTO leases (conversation, generation, boot, ends) VALUES (:conversation,
:generation, :boot, :ends)"""
UPDATE_LEASE = """UPDATE leases SET generation=:generation, boot=:boot, ends=:ends WHERE leases.conversation
= :row"""
RENEW_LEASE = """UPDATE leases SET ends=:ends WHERE leases.conversation = :row"""
SELECT_INHERITED = """SELECT segments.owner, segments.first, segments.last FROM segments WHERE
segments.conversation = :row ORDER BY segments.last"""
SELECT_SHOWN = """SELECT segments.owner, segments.first, segments.last FROM segments WHERE
segments.conversation = :row AND segments.first <= :seq UNION ALL SELECT 0 AS owner,
(SELECT coalesce(max(segments.last), 0) + 1 AS anon_1 FROM segments WHERE
segments.conversation = :row) AS first, :seq AS last WHERE (SELECT
coalesce(max(segments.last), 0) + 1 AS anon_1 FROM segments WHERE segments.conversation =
:row) <= :seq"""
INSERT_SEGMENT = """INSERT INTO segments (conversation, last, first, owner) VALUES (:conversation, :last,
:first, :owner)"""
SELECT_NEWEST_TURN = """SELECT blocks.turn FROM blocks WHERE blocks.conversation = :owner AND blocks.id <= (SELECT
blocks.id FROM blocks WHERE blocks.conversation = :owner AND blocks.seq = :last) ORDER BY
blocks.turn DESC LIMIT 1 OFFSET 0"""
SELECT_ORIGIN = """SELECT conversations.title, conversations.started_at FROM conversations WHERE
conversations.id = :row"""
SELECT_FORKS = """SELECT conversations.id, conversations.name FROM conversations WHERE conversations.id IN
(SELECT segments.conversation FROM segments WHERE segments.owner = :owner) ORDER BY
(SELECT max(segments.last) AS max_1 FROM segments WHERE segments.conversation =
conversations.id) DESC, conversations.id DESC"""
SELECT_KEY = """SELECT conversations.tenant, conversations.project, conversations.user, conversations.name
FROM conversations WHERE conversations.id = :row"""
SELECT_NAMED_BETWEEN = """SELECT conversations.id, conversations.name FROM conversations WHERE conversations.tenant
= :tenant AND conversations.project = :project AND conversations.user = :user AND
conversations.name > :begin AND conversations.name < :end AND NOT (EXISTS (SELECT * FROM
tombstones WHERE tombstones.conversation = conversations.id)) ORDER BY conversations.id"""
INSERT_TOMBSTONE = """INSERT INTO tombstones (conversation, at) VALUES (:conversation, :at)"""
INSERT_PURGES = """INSERT INTO purges (blob) SELECT DISTINCT blocks.blob FROM blocks WHERE
blocks.conversation = :row AND blocks.blob IS NOT NULL AND NOT (EXISTS (SELECT * FROM
purges WHERE purges.blob = blocks.blob))"""
DELETE_CONTENT = (
    """DELETE FROM blocks WHERE blocks.conversation = :row""",
    """DELETE FROM appends WHERE appends.conversation = :row""",
    """DELETE FROM segments WHERE segments.conversation = :row""",
)
CLEAR_CONVERSATION = """UPDATE conversations SET title='', term=(conversations.term + 1), started_at=0 WHERE
conversations.id = :row"""
SELECT_PURGEABLE = """SELECT purges.blob FROM purges WHERE NOT (EXISTS (SELECT * FROM blocks WHERE blocks.blob =
purges.blob))"""
DELETE_PURGES = """DELETE FROM purges"""
SELECT_FORGETTING = """SELECT conversations.tenant, conversations.project, conversations.user, conversations.name
FROM meta JOIN conversations ON conversations.id = CAST(meta.value AS INTEGER) WHERE
meta."key" > :begin AND meta."key" < :end ORDER BY conversations.id"""
SELECT_SCHEDULED = """SELECT conversations.tenant, conversations.project, conversations.user,
conversations.name, meta.value FROM meta JOIN conversations ON conversations.id =
CAST(replace(meta."key", :begin, '') AS INTEGER) WHERE meta."key" > :begin AND meta."key"
< :end"""
SELECT_LAST_ID = """SELECT coalesce(max(blocks.id), 0) AS coalesce_1 FROM blocks"""
SELECT_INPUTS_AFTER = """SELECT DISTINCT conversations.tenant, conversations.project, conversations.user,
conversations.name FROM blocks JOIN conversations ON blocks.conversation =
conversations.id WHERE blocks.id > :last AND (blocks.type IN ('user.prompt',
'user.answer', 'user.retry', 'user.schedule') OR blocks.type = 'turn.header' AND
blocks.body LIKE '%"handed_over"_true%')"""
SELECT_REFERENCED_BLOBS = (
    """SELECT DISTINCT blocks.blob FROM blocks WHERE blocks.blob IS NOT NULL"""
)
SELECT_CONVERSATIONS = """SELECT conversations.id, conversations.tenant, conversations.project, conversations.user,
conversations.name, tombstones.at FROM conversations LEFT OUTER JOIN tombstones ON
tombstones.conversation = conversations.id ORDER BY conversations.id"""
SELECT_CONVERSATION = """SELECT conversations.id, conversations.tenant, conversations.project, conversations.user,
conversations.name, tombstones.at FROM conversations LEFT OUTER JOIN tombstones ON
tombstones.conversation = conversations.id WHERE conversations.tenant = :tenant AND
conversations.project = :project AND conversations.user = :user AND conversations.name =
:name ORDER BY conversations.id"""
SELECT_LINKS = """SELECT blocks.id, blocks.seq, blocks.turn, blocks.round, blocks.n, blocks.ts, blocks.term,
blocks.version, CAST(blocks.type AS BLOB) AS type, CAST(blocks.body AS BLOB) AS body,
blocks.blob, blocks.digest FROM blocks WHERE blocks.conversation = :owner AND blocks.seq >
:after ORDER BY blocks.seq LIMIT :limit OFFSET 0"""
CREATE_TABLES: Mapping[str, tuple[str, ...]] = {
    "conversations": (
        """CREATE TABLE conversations ( id INTEGER NOT NULL, tenant TEXT NOT NULL, project TEXT NOT
NULL, user TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, title TEXT NOT NULL,
turns INTEGER NOT NULL, term INTEGER NOT NULL, started_at INTEGER NOT NULL, PRIMARY KEY
(id), UNIQUE (tenant, project, user, name), CHECK (id > 0), UNIQUE (uid) )""",
    ),
    "meta": (
        """CREATE TABLE meta ( "key" TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY ("key") )""",
    ),
    "purges": ("""CREATE TABLE purges ( blob TEXT NOT NULL, PRIMARY KEY (blob) )""",),
    "appends": (
        """CREATE TABLE appends ( conversation INTEGER NOT NULL, "key" TEXT NOT NULL, last_seq
INTEGER NOT NULL, PRIMARY KEY (conversation, "key"), FOREIGN KEY(conversation) REFERENCES
conversations (id) ) WITHOUT ROWID""",
    ),
    "blocks": (
        """CREATE TABLE blocks ( id INTEGER NOT NULL, conversation INTEGER NOT NULL, seq INTEGER NOT
NULL, turn INTEGER NOT NULL, round INTEGER NOT NULL, n INTEGER NOT NULL, ts INTEGER NOT
NULL, term INTEGER NOT NULL, type TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT
NULL, blob TEXT, digest BLOB, bytes INTEGER, PRIMARY KEY (id), UNIQUE (conversation, seq),
CHECK (id > 0), FOREIGN KEY(conversation) REFERENCES conversations (id) )""",
        """CREATE INDEX blocks_by_blob ON blocks (blob) WHERE blob IS NOT NULL""",
        """CREATE INDEX blocks_by_turn ON blocks (conversation, turn)""",
    ),
    "leases": (
        """CREATE TABLE leases ( conversation INTEGER NOT NULL, generation INTEGER NOT NULL, boot
TEXT NOT NULL, ends INTEGER NOT NULL, PRIMARY KEY (conversation), FOREIGN
KEY(conversation) REFERENCES conversations (id) )""",
    ),
    "segments": (
        """CREATE TABLE segments ( conversation INTEGER NOT NULL, last INTEGER NOT NULL, first
INTEGER NOT NULL, owner INTEGER NOT NULL, PRIMARY KEY (conversation, last), FOREIGN
KEY(conversation) REFERENCES conversations (id), FOREIGN KEY(owner) REFERENCES
conversations (id) ) WITHOUT ROWID""",
        """CREATE INDEX segments_by_owner ON segments (owner)""",
    ),
    "tombstones": (
        """CREATE TABLE tombstones ( conversation INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY
(conversation), FOREIGN KEY(conversation) REFERENCES conversations (id) )""",
    ),
}
