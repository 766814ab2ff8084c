-- Each index of events is written with each event. Those of a kind are found in the index by time, which has it.
DROP INDEX events_by_kind;

DROP INDEX events_by_time;

CREATE INDEX events_by_time ON events (conversation_id, timestamp, seq, kind);
