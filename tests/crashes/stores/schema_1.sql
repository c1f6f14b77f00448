BEGIN TRANSACTION;
CREATE TABLE appends (
	conversation INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	last_seq INTEGER NOT NULL, 
	PRIMARY KEY (conversation, "key"), 
	FOREIGN KEY(conversation) REFERENCES conversations (id)
)
 WITHOUT ROWID

;
INSERT INTO "appends" VALUES(1,'k',2);
CREATE TABLE blocks (
	id INTEGER NOT NULL, 
	conversation INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	turn INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	ts INTEGER NOT NULL, 
	term INTEGER NOT NULL, 
	type TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (conversation, seq), 
	CHECK (id > 0), 
	FOREIGN KEY(conversation) REFERENCES conversations (id)
);
INSERT INTO "blocks" VALUES(1,1,1,1,0,1,1795172616524,1,'user.prompt',1,'{"text":"one"}');
INSERT INTO "blocks" VALUES(2,1,2,1,1,1,1795172616524,1,'react.notes',1,'{"text":"noted"}');
INSERT INTO "blocks" VALUES(3,1,3,2,0,1,1795172616527,0,'user.prompt',1,'{"text":"two"}');
INSERT INTO "blocks" VALUES(4,2,1,1,0,1,1795172616528,0,'user.prompt',1,'{"text":"there"}');
CREATE TABLE conversations (
	id INTEGER NOT NULL, 
	tenant TEXT NOT NULL, 
	project TEXT NOT NULL, 
	user TEXT NOT NULL, 
	name TEXT NOT NULL, 
	uid TEXT NOT NULL, 
	title TEXT NOT NULL, 
	turns INTEGER NOT NULL, 
	term INTEGER NOT NULL, 
	started_at INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (tenant, project, user, name), 
	CHECK (id > 0), 
	UNIQUE (uid)
);
INSERT INTO "conversations" VALUES(1,'default','default','local','here','fa8870b6277cf2a27126bda4a9b0ef65','one',2,1,1795172616524);
INSERT INTO "conversations" VALUES(2,'default','default','local','there','427d5c42ca62dff94f10e482360db4db','there',1,0,1795172616528);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version','1');
CREATE INDEX blocks_by_turn ON blocks (conversation, turn);
CREATE TRIGGER blocks_are_not_changed BEFORE UPDATE ON blocks  BEGIN SELECT RAISE(ABORT, 'append-only: a block is never changed'); END;
CREATE TRIGGER blocks_are_not_removed BEFORE DELETE ON blocks  BEGIN SELECT RAISE(ABORT, 'append-only: a block is never removed'); END;
CREATE TRIGGER blocks_are_dense BEFORE INSERT ON blocks WHEN new.seq <> 1 + coalesce(
            (SELECT max(seq) FROM blocks WHERE conversation = new.conversation), 0)
        OR EXISTS (SELECT 1 FROM blocks WHERE id = new.id) BEGIN SELECT RAISE(ABORT, 'append-only: a block takes the next place'); END;
CREATE TRIGGER conversations_are_not_removed BEFORE DELETE ON conversations  BEGIN SELECT RAISE(ABORT, 'append-only: a conversation is never removed'); END;
CREATE TRIGGER conversations_are_not_replaced BEFORE INSERT ON conversations WHEN EXISTS (SELECT 1 FROM conversations WHERE id = new.id OR uid = new.uid
        OR (tenant, project, user, name) = (new.tenant, new.project, new.user, new.name)) BEGIN SELECT RAISE(ABORT, 'append-only: a conversation is never replaced'); END;
CREATE TRIGGER conversations_only_move_on BEFORE UPDATE ON conversations WHEN new.term < old.term OR new.turns < old.turns OR
        (new.id, new.uid, new.tenant, new.project, new.user, new.name)
        <> (old.id, old.uid, old.tenant, old.project, old.user, old.name) BEGIN SELECT RAISE(ABORT, 'append-only: a conversation keeps its names, and its terms and turns never fall'); END;
CREATE TRIGGER appends_are_not_changed BEFORE UPDATE ON appends  BEGIN SELECT RAISE(ABORT, 'append-only: a key is never changed'); END;
CREATE TRIGGER appends_are_not_removed BEFORE DELETE ON appends  BEGIN SELECT RAISE(ABORT, 'append-only: a key is never removed'); END;
CREATE TRIGGER appends_are_not_replaced BEFORE INSERT ON appends WHEN EXISTS (SELECT 1 FROM appends WHERE conversation = new.conversation AND key = new.key) BEGIN SELECT RAISE(ABORT, 'append-only: a key is never replaced'); END;
COMMIT;
