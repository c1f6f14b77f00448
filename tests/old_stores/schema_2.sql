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
	blob TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (conversation, seq), 
	CHECK (id > 0), 
	FOREIGN KEY(conversation) REFERENCES conversations (id)
);
INSERT INTO "blocks" VALUES(1,1,1,1,0,1,1767225600000,0,'user.prompt',1,'{"text":"first"}',NULL);
INSERT INTO "blocks" VALUES(2,1,2,1,0,1,1767225600000,1,'turn.header',1,'{"bundle":"guarded","model":"scripted","protocol":"native","began":"2026-01-01T00:00:00Z"}',NULL);
INSERT INTO "blocks" VALUES(3,1,3,1,1,1,1767225600000,1,'react.round.start',1,'{"saw":1,"takes":[1],"epoch":1,"opened_by":"start","model":"scripted","protocol":"native","renderer":3,"system_sha256":"08956abd75f69c19955d90b8c3883e328d95e4bda544f55dba946b73dbabbfbe","tools_sha256":"7d7138ede0ac7cec7332d73784814ec1702deab59a91ec17ac48fe9240fe7321","stable_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","tail":"ANNOUNCE — iteration 1 of 15, 14 left\n[TIME] 2026-01-01 00:00 UTC  [TURN] turn_1","limit":15,"tokens":1124,"points":[{"name":"tail","messages":1,"tokens":1095}],"system":"Bundle: guarded\n\nYou work in rounds: in each you either call tools or give the final answer.\n- Every block has a ref such as tc:turn_1.c2.result; react.read reads any ref again.\n- Cite sources in the final answer right after the sentence they support, as [[S:1]] or [[S:2,3]], with the numbers that tool results give.\n- With react.plan you can keep a plan; acknowledge its steps in the text beside your calls, in lines that begin ✓ [n], ✗ [n], … [n] or □ [n].\n- Old rounds may be shown in part, named in a line or summed up; the refs there restore them. What must never be lost goes into lines of that text which begin [P] preference, [D] decision, [S] structure, [A] achievement or [K] key artifact.","tools":"[{\"name\":\"react.plan\",\"description\":\"Keep a plan. mode=new begins one from steps; replace retires plan_id and begins another from steps; activate makes an open plan_id current again; close ends plan_id. Acknowledge steps of the current plan with lines in your text that begin ✓ [n] done, ✗ [n] failed, … [n] in progress, □ [n] pending, but never in the reply that calls react.plan.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"mode\":{\"type\":\"string\",\"enum\":[\"new\",\"activate\",\"replace\",\"close\"]},\"plan_id\":{\"type\":\"string\",\"description\":\"For activate, replace and close.\"},\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Descriptions, in order; for new and replace.\"}},\"required\":[\"mode\"],\"additionalProperties\":false}},{\"name\":\"react.read\",\"description\":\"Read anything that has a ref again: ar: blocks, tc: tool calls and results, fi: attached files, so:sources_pool[1,3-5], sk: skills, ks: knowledge paths; add #L10-L40 for some lines. The status comes first, then the texts.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"paths\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":50,\"description\":\"The refs to read, in the order wanted.\"}},\"required\":[\"paths\"],\"additionalProperties\":false}},{\"name\":\"react.hide\",\"description\":\"Put something recent out of sight that you need no more, such as a long result: replacement, a line of yours, stands where path, its ref, was. react.read shows it again. What is older than the cached part of the prompt cannot be hidden.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"The ref of what is to be hidden.\"},\"replacement\":{\"type\":\"string\",\"description\":\"What is shown in its place.\"}},\"required\":[\"path\",\"replacement\"],\"additionalProperties\":false}},{\"name\":\"play.look\",\"description\":\"Say the text back.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"text\":{\"default\":\"\",\"type\":\"string\"}},\"type\":\"object\"}},{\"name\":\"play.find\",\"description\":\"Find a page.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"url\":{\"type\":\"string\"}},\"required\":[\"url\"],\"type\":\"object\"}},{\"name\":\"play.note\",\"description\":\"Write a line into a ledger file.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"name\":{\"type\":\"string\"},\"ledger\":{\"type\":\"string\"}},\"required\":[\"name\",\"ledger\"],\"type\":\"object\"}},{\"name\":\"play.alone\",\"description\":\"Do something that nothing else may happen beside.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"text\":{\"type\":\"string\"}},\"required\":[\"text\"],\"type\":\"object\"}},{\"name\":\"play.fail\",\"description\":\"Refuse.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"message\":{\"type\":\"string\"}},\"required\":[\"message\"],\"type\":\"object\"}},{\"name\":\"play.crash\",\"description\":\"Break.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{},\"type\":\"object\"}}]"}',NULL);
INSERT INTO "blocks" VALUES(4,1,4,1,1,1,1767225600000,1,'react.decision',1,'{"model":"scripted","stop_reason":"tool_use","calls":1}',NULL);
INSERT INTO "blocks" VALUES(5,1,5,1,1,1,1767225600000,1,'react.notes',1,'{"text":"[D] SQLite it is"}',NULL);
INSERT INTO "blocks" VALUES(6,1,6,1,1,1,1767225600000,1,'react.tool.call',1,'{"call_id":"c1","tool":"react.plan","arguments":{"mode":"new","steps":["look","answer"]}}',NULL);
INSERT INTO "blocks" VALUES(7,1,7,1,1,1,1767225600000,1,'react.tool.start',1,'{"call_id":"c1","effect":"meta"}',NULL);
INSERT INTO "blocks" VALUES(8,1,8,1,1,1,1767225600000,1,'react.tool.result',1,'{"call_id":"c1","tool":"react.plan","text":"mode=new: plan_id=plan:turn_1:c1 is current\nlatest: ar:plan.latest:plan:turn_1:c1\n□ [1] look\n□ [2] answer"}',NULL);
INSERT INTO "blocks" VALUES(9,1,9,1,1,1,1767225600000,1,'react.plan',1,'{"snapshot":{"plan_id":"plan:turn_1:c1","steps":["look","answer"],"created_ts":"2026-01-01T00:00:00Z","last_ts":"2026-01-01T00:00:00Z","origin_turn_id":"turn_1","last_turn_id":"turn_1"}}',NULL);
INSERT INTO "blocks" VALUES(10,1,10,1,2,2,1767225600000,1,'react.round.start',1,'{"saw":9,"takes":[],"epoch":1,"opened_by":"","model":"scripted","protocol":"native","renderer":3,"system_sha256":"08956abd75f69c19955d90b8c3883e328d95e4bda544f55dba946b73dbabbfbe","tools_sha256":"7d7138ede0ac7cec7332d73784814ec1702deab59a91ec17ac48fe9240fe7321","stable_sha256":"7d1ba7863a82e6333432adea20b9d14983ae9c05f96e9e04b96ea0d42607a032","tail":"ANNOUNCE — iteration 2 of 15, 13 left\n[TIME] 2026-01-01 00:00 UTC  [TURN] turn_1\n[OPEN PLANS]\nplan_id=plan:turn_1:c1 (current)\n□ [1] look\n□ [2] answer","limit":15,"tokens":1268,"points":[{"name":"tail","messages":3,"tokens":1214}]}',NULL);
INSERT INTO "blocks" VALUES(11,1,11,1,2,2,1767225600000,1,'react.decision',1,'{"model":"scripted","stop_reason":"tool_use","calls":2}',NULL);
INSERT INTO "blocks" VALUES(12,1,12,1,2,2,1767225600000,1,'react.notes',1,'{"text":"✓ [1] seen"}',NULL);
INSERT INTO "blocks" VALUES(13,1,13,1,2,1,1767225600000,1,'react.plan.ack',1,'{"plan_id":"plan:turn_1:c1","changes":{"1":"done"}}',NULL);
INSERT INTO "blocks" VALUES(14,1,14,1,2,2,1767225600000,1,'react.plan',1,'{"snapshot":{"plan_id":"plan:turn_1:c1","steps":["look","answer"],"created_ts":"2026-01-01T00:00:00Z","last_ts":"2026-01-01T00:00:00Z","origin_turn_id":"turn_1","last_turn_id":"turn_1","step_status":{"1":"done"},"last_ack_ts":"2026-01-01T00:00:00Z","last_ack_turn_id":"turn_1"}}',NULL);
INSERT INTO "blocks" VALUES(15,1,15,1,2,2,1767225600000,1,'react.tool.call',1,'{"call_id":"c2","tool":"play.find","arguments":{"url":"https://example.com"}}',NULL);
INSERT INTO "blocks" VALUES(16,1,16,1,2,3,1767225600000,1,'react.tool.call',1,'{"call_id":"c3","tool":"play.alone","arguments":{"text":"x"}}',NULL);
INSERT INTO "blocks" VALUES(17,1,17,1,2,2,1767225600000,1,'react.tool.result',1,'{"call_id":"c2","tool":"play.find","text":"one page: https://example.com\n\nsources:\n[[S:1]] A page — https://example.com"}',NULL);
INSERT INTO "blocks" VALUES(18,1,18,1,2,1,1767225600000,1,'source.added',1,'{"sid":1,"source":{"url":"https://example.com","title":"A page"}}',NULL);
INSERT INTO "blocks" VALUES(19,1,19,1,2,2,1767225600000,1,'react.tool.start',1,'{"call_id":"c3","effect":"exclusive"}',NULL);
INSERT INTO "blocks" VALUES(20,1,20,1,2,3,1767225600000,1,'react.tool.result',1,'{"call_id":"c3","tool":"play.alone","text":"alone with x"}',NULL);
INSERT INTO "blocks" VALUES(21,1,21,1,3,3,1767225600000,1,'react.round.start',1,'{"saw":20,"takes":[],"epoch":1,"opened_by":"","model":"scripted","protocol":"native","renderer":3,"system_sha256":"08956abd75f69c19955d90b8c3883e328d95e4bda544f55dba946b73dbabbfbe","tools_sha256":"7d7138ede0ac7cec7332d73784814ec1702deab59a91ec17ac48fe9240fe7321","stable_sha256":"3a24fddc77f7f0f5e7b3c047396a57dbe754000b221e1cb8dccad55edd10dae1","tail":"ANNOUNCE — iteration 3 of 15, 12 left\n[TIME] 2026-01-01 00:00 UTC  [TURN] turn_1\n[OPEN PLANS]\nplan_id=plan:turn_1:c1 (current)\n✓ [1] look\n□ [2] answer","limit":15,"tokens":1430,"points":[{"name":"pre_tail","messages":3,"tokens":1214},{"name":"tail","messages":6,"tokens":1376}]}',NULL);
INSERT INTO "blocks" VALUES(22,1,22,1,3,3,1767225600000,1,'react.decision',1,'{"model":"scripted","stop_reason":"stop"}',NULL);
INSERT INTO "blocks" VALUES(23,1,23,1,3,3,1767225600000,1,'react.notes',1,'{"text":"✓ [2] so"}',NULL);
INSERT INTO "blocks" VALUES(24,1,24,1,3,2,1767225600000,1,'react.plan.ack',1,'{"plan_id":"plan:turn_1:c1","changes":{"2":"done"}}',NULL);
INSERT INTO "blocks" VALUES(25,1,25,1,3,3,1767225600000,1,'react.plan',1,'{"snapshot":{"plan_id":"plan:turn_1:c1","steps":["look","answer"],"created_ts":"2026-01-01T00:00:00Z","last_ts":"2026-01-01T00:00:00Z","origin_turn_id":"turn_1","last_turn_id":"turn_1","step_status":{"1":"done","2":"done"},"last_ack_ts":"2026-01-01T00:00:00Z","last_ack_turn_id":"turn_1"}}',NULL);
INSERT INTO "blocks" VALUES(26,1,26,1,3,1,1767225600000,1,'assistant.completion',1,'{"text":"It is [[S:1]].","sources_used":[1]}',NULL);
INSERT INTO "blocks" VALUES(27,1,27,1,0,1,1767225600000,1,'react.exit',1,'{"reason":"complete","rounds":3}',NULL);
INSERT INTO "blocks" VALUES(28,1,28,1,0,1,1767225600000,0,'user.followup',1,'{"text":"by the way"}',NULL);
INSERT INTO "blocks" VALUES(29,1,29,2,0,1,1767225600000,0,'user.prompt',1,'{"text":"second"}',NULL);
INSERT INTO "blocks" VALUES(30,1,30,2,0,1,1767225600000,2,'turn.header',1,'{"bundle":"guarded","model":"scripted","protocol":"native","began":"2026-01-01T00:00:00Z"}',NULL);
INSERT INTO "blocks" VALUES(31,1,31,2,1,1,1767225600000,2,'react.round.start',1,'{"saw":29,"takes":[28,29],"epoch":1,"opened_by":"","model":"scripted","protocol":"native","renderer":3,"system_sha256":"08956abd75f69c19955d90b8c3883e328d95e4bda544f55dba946b73dbabbfbe","tools_sha256":"7d7138ede0ac7cec7332d73784814ec1702deab59a91ec17ac48fe9240fe7321","stable_sha256":"6323312488d78a9d141d48e81064bfa3348d2618850bf6c90d7f23775cbf6722","tail":"ANNOUNCE — iteration 1 of 15, 14 left\n[TIME] 2026-01-01 00:00 UTC  [TURN] turn_2","limit":15,"tokens":1463,"points":[{"name":"pre_tail","messages":3,"tokens":1214},{"name":"prev_turn","messages":7,"tokens":1393},{"name":"tail","messages":9,"tokens":1434}]}',NULL);
INSERT INTO "blocks" VALUES(32,1,32,2,1,1,1767225600000,2,'react.decision',1,'{"model":"scripted","stop_reason":"stop"}',NULL);
INSERT INTO "blocks" VALUES(33,1,33,2,1,1,1767225600000,2,'assistant.completion',1,'{"text":"And again."}',NULL);
INSERT INTO "blocks" VALUES(34,1,34,2,0,1,1767225600000,2,'react.exit',1,'{"reason":"complete","rounds":1}',NULL);
INSERT INTO "blocks" VALUES(35,1,35,1,0,1,1767225600000,0,'turn.feedback',1,'{"reaction":"ok","text":"short"}',NULL);
INSERT INTO "blocks" VALUES(36,3,1,1,0,1,1767225600000,0,'user.prompt',1,'{"text":"write it down"}',NULL);
INSERT INTO "blocks" VALUES(37,3,2,1,0,1,1767225600000,1,'turn.header',1,'{"bundle":"guarded","model":"scripted","protocol":"native","began":"2026-01-01T00:00:00Z"}',NULL);
INSERT INTO "blocks" VALUES(38,3,3,1,1,1,1767225600000,1,'react.round.start',1,'{"saw":1,"takes":[1],"epoch":1,"opened_by":"start","model":"scripted","protocol":"native","renderer":3,"system_sha256":"08956abd75f69c19955d90b8c3883e328d95e4bda544f55dba946b73dbabbfbe","tools_sha256":"7d7138ede0ac7cec7332d73784814ec1702deab59a91ec17ac48fe9240fe7321","stable_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","tail":"ANNOUNCE — iteration 1 of 15, 14 left\n[TIME] 2026-01-01 00:00 UTC  [TURN] turn_1","limit":15,"tokens":1126,"points":[{"name":"tail","messages":1,"tokens":1097}],"system":"Bundle: guarded\n\nYou work in rounds: in each you either call tools or give the final answer.\n- Every block has a ref such as tc:turn_1.c2.result; react.read reads any ref again.\n- Cite sources in the final answer right after the sentence they support, as [[S:1]] or [[S:2,3]], with the numbers that tool results give.\n- With react.plan you can keep a plan; acknowledge its steps in the text beside your calls, in lines that begin ✓ [n], ✗ [n], … [n] or □ [n].\n- Old rounds may be shown in part, named in a line or summed up; the refs there restore them. What must never be lost goes into lines of that text which begin [P] preference, [D] decision, [S] structure, [A] achievement or [K] key artifact.","tools":"[{\"name\":\"react.plan\",\"description\":\"Keep a plan. mode=new begins one from steps; replace retires plan_id and begins another from steps; activate makes an open plan_id current again; close ends plan_id. Acknowledge steps of the current plan with lines in your text that begin ✓ [n] done, ✗ [n] failed, … [n] in progress, □ [n] pending, but never in the reply that calls react.plan.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"mode\":{\"type\":\"string\",\"enum\":[\"new\",\"activate\",\"replace\",\"close\"]},\"plan_id\":{\"type\":\"string\",\"description\":\"For activate, replace and close.\"},\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Descriptions, in order; for new and replace.\"}},\"required\":[\"mode\"],\"additionalProperties\":false}},{\"name\":\"react.read\",\"description\":\"Read anything that has a ref again: ar: blocks, tc: tool calls and results, fi: attached files, so:sources_pool[1,3-5], sk: skills, ks: knowledge paths; add #L10-L40 for some lines. The status comes first, then the texts.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"paths\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":50,\"description\":\"The refs to read, in the order wanted.\"}},\"required\":[\"paths\"],\"additionalProperties\":false}},{\"name\":\"react.hide\",\"description\":\"Put something recent out of sight that you need no more, such as a long result: replacement, a line of yours, stands where path, its ref, was. react.read shows it again. What is older than the cached part of the prompt cannot be hidden.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"The ref of what is to be hidden.\"},\"replacement\":{\"type\":\"string\",\"description\":\"What is shown in its place.\"}},\"required\":[\"path\",\"replacement\"],\"additionalProperties\":false}},{\"name\":\"play.look\",\"description\":\"Say the text back.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"text\":{\"default\":\"\",\"type\":\"string\"}},\"type\":\"object\"}},{\"name\":\"play.find\",\"description\":\"Find a page.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"url\":{\"type\":\"string\"}},\"required\":[\"url\"],\"type\":\"object\"}},{\"name\":\"play.note\",\"description\":\"Write a line into a ledger file.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"name\":{\"type\":\"string\"},\"ledger\":{\"type\":\"string\"}},\"required\":[\"name\",\"ledger\"],\"type\":\"object\"}},{\"name\":\"play.alone\",\"description\":\"Do something that nothing else may happen beside.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"text\":{\"type\":\"string\"}},\"required\":[\"text\"],\"type\":\"object\"}},{\"name\":\"play.fail\",\"description\":\"Refuse.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{\"message\":{\"type\":\"string\"}},\"required\":[\"message\"],\"type\":\"object\"}},{\"name\":\"play.crash\",\"description\":\"Break.\",\"parameters\":{\"additionalProperties\":false,\"properties\":{},\"type\":\"object\"}}]"}',NULL);
INSERT INTO "blocks" VALUES(39,3,4,1,1,1,1767225600000,1,'react.decision',1,'{"model":"scripted","stop_reason":"tool_use","calls":1}',NULL);
INSERT INTO "blocks" VALUES(40,3,5,1,1,1,1767225600000,1,'react.tool.call',1,'{"call_id":"c1","tool":"play.note","arguments":{"name":"n","ledger":"ledger"}}',NULL);
INSERT INTO "blocks" VALUES(41,3,6,1,1,1,1767225600000,1,'react.tool.pending',1,'{"call_id":"c1","kind":"approval","question":"May play.note run with {\"name\":\"n\",\"ledger\":\"ledger\"}?","digest":"0318433f82cd363ba702f379691c08dabcec62937cb89e8596efcf651b30859b"}',NULL);
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
INSERT INTO "conversations" VALUES(1,'default','default','local','talk','00000000000000000000000000000001','first',2,2,1767225600000);
INSERT INTO "conversations" VALUES(2,'default','default','local','fork','00000000000000000000000000000002','first',2,0,1767225600000);
INSERT INTO "conversations" VALUES(3,'default','default','local','waits','00000000000000000000000000000003','write it down',1,1,1767225600000);
CREATE TABLE leases (
	conversation INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	boot TEXT NOT NULL, 
	ends INTEGER NOT NULL, 
	PRIMARY KEY (conversation), 
	FOREIGN KEY(conversation) REFERENCES conversations (id)
);
INSERT INTO "leases" VALUES(1,0,'a845ee80-118b-42aa-a062-bf91e9c4ab55',6542114);
INSERT INTO "leases" VALUES(3,0,'a845ee80-118b-42aa-a062-bf91e9c4ab55',6542128);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema_version','2');
INSERT INTO "meta" VALUES('collected_at','1767225600000');
CREATE TABLE purges (
	blob TEXT NOT NULL, 
	PRIMARY KEY (blob)
);
CREATE TABLE segments (
	conversation INTEGER NOT NULL, 
	last INTEGER NOT NULL, 
	first INTEGER NOT NULL, 
	owner INTEGER NOT NULL, 
	PRIMARY KEY (conversation, last), 
	FOREIGN KEY(conversation) REFERENCES conversations (id), 
	FOREIGN KEY(owner) REFERENCES conversations (id)
)
 WITHOUT ROWID

;
INSERT INTO "segments" VALUES(2,33,1,1);
CREATE TABLE tombstones (
	conversation INTEGER NOT NULL, 
	at INTEGER NOT NULL, 
	PRIMARY KEY (conversation), 
	FOREIGN KEY(conversation) REFERENCES conversations (id)
);
CREATE INDEX blocks_by_blob ON blocks (blob) WHERE blob IS NOT NULL;
CREATE INDEX blocks_by_turn ON blocks (conversation, turn);
CREATE INDEX segments_by_owner ON segments (owner);
CREATE TRIGGER blocks_are_not_changed BEFORE UPDATE ON blocks  BEGIN SELECT RAISE(ABORT, 'append-only: a block is never changed'); END;
CREATE TRIGGER blocks_are_not_removed BEFORE DELETE ON blocks WHEN NOT EXISTS (SELECT 1 FROM tombstones WHERE conversation = old.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a block is never removed'); END;
CREATE TRIGGER blocks_are_dense BEFORE INSERT ON blocks WHEN new.seq <> 1 + coalesce(
            (SELECT max(seq) FROM blocks WHERE conversation = new.conversation),
            (SELECT max(last) FROM segments WHERE conversation = new.conversation), 0)
        OR EXISTS (SELECT 1 FROM blocks WHERE id = new.id)
        OR EXISTS (SELECT 1 FROM tombstones WHERE conversation = new.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a block takes the next place'); END;
CREATE TRIGGER conversations_are_not_removed BEFORE DELETE ON conversations  BEGIN SELECT RAISE(ABORT, 'append-only: a conversation is never removed'); END;
CREATE TRIGGER conversations_are_not_replaced BEFORE INSERT ON conversations WHEN EXISTS (SELECT 1 FROM conversations WHERE id = new.id OR uid = new.uid
        OR (tenant, project, user, name) = (new.tenant, new.project, new.user, new.name)) BEGIN SELECT RAISE(ABORT, 'append-only: a conversation is never replaced'); END;
CREATE TRIGGER conversations_only_move_on BEFORE UPDATE ON conversations WHEN new.term < old.term OR new.turns < old.turns OR
        (new.id, new.uid, new.tenant, new.project, new.user, new.name)
        <> (old.id, old.uid, old.tenant, old.project, old.user, old.name) BEGIN SELECT RAISE(ABORT, 'append-only: a conversation keeps its names, and its terms and turns never fall'); END;
CREATE TRIGGER appends_are_not_changed BEFORE UPDATE ON appends  BEGIN SELECT RAISE(ABORT, 'append-only: a key is never changed'); END;
CREATE TRIGGER appends_are_not_removed BEFORE DELETE ON appends WHEN NOT EXISTS (SELECT 1 FROM tombstones WHERE conversation = old.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a key is never removed'); END;
CREATE TRIGGER appends_are_not_replaced BEFORE INSERT ON appends WHEN EXISTS (SELECT 1 FROM appends WHERE conversation = new.conversation AND key = new.key) BEGIN SELECT RAISE(ABORT, 'append-only: a key is never replaced'); END;
CREATE TRIGGER segments_are_not_changed BEFORE UPDATE ON segments  BEGIN SELECT RAISE(ABORT, 'append-only: a fork is never changed'); END;
CREATE TRIGGER segments_are_not_removed BEFORE DELETE ON segments WHEN NOT EXISTS (SELECT 1 FROM tombstones WHERE conversation = old.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a fork is never removed'); END;
CREATE TRIGGER segments_are_dense BEFORE INSERT ON segments WHEN new.first <> 1 + coalesce(
            (SELECT max(last) FROM segments WHERE conversation = new.conversation), 0)
        OR new.last < new.first
        OR EXISTS (SELECT 1 FROM blocks WHERE conversation = new.conversation)
        OR NOT EXISTS (SELECT 1 FROM blocks WHERE conversation = new.owner AND seq = new.first)
        OR NOT EXISTS (SELECT 1 FROM blocks WHERE conversation = new.owner AND seq = new.last)
        OR EXISTS (SELECT 1 FROM tombstones WHERE conversation = new.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a fork begins with what is there'); END;
CREATE TRIGGER tombstones_are_not_changed BEFORE UPDATE ON tombstones  BEGIN SELECT RAISE(ABORT, 'append-only: a tombstone stays'); END;
CREATE TRIGGER tombstones_are_not_removed BEFORE DELETE ON tombstones  BEGIN SELECT RAISE(ABORT, 'append-only: a tombstone stays'); END;
CREATE TRIGGER tombstones_are_set_once BEFORE INSERT ON tombstones WHEN EXISTS (SELECT 1 FROM tombstones WHERE conversation = new.conversation) BEGIN SELECT RAISE(ABORT, 'append-only: a tombstone stays'); END;
CREATE TRIGGER tombstones_wait_for_forks BEFORE INSERT ON tombstones WHEN EXISTS (SELECT 1 FROM segments WHERE owner = new.conversation
        AND NOT EXISTS (SELECT 1 FROM tombstones WHERE conversation = segments.conversation)) BEGIN SELECT RAISE(ABORT, 'append-only: a fork still shows it'); END;
COMMIT;
