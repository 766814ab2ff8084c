-- What a copied conversation begins with was told as events of the first one: it lies below the next number
-- of the copy, and only what comes from there on is told.
DROP TRIGGER webhooks_after_event;

CREATE TRIGGER webhooks_after_event AFTER INSERT ON events
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, seq)
    SELECT s.id, NEW.conversation_id, 'conversation.event', NEW.seq
    FROM conversations AS c
    JOIN webhook_subscriptions AS s ON s.user_id = c.user_id
    WHERE c.id = NEW.conversation_id
      AND NEW.seq >= c.next_seq
      AND s.is_enabled
      AND (s.event_kinds IS NULL OR NEW.kind IN (SELECT value FROM json_each(s.event_kinds)));
END;
