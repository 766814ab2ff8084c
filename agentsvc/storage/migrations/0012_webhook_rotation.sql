-- Why a webhook was disabled other than by its user, until when its receiver wants nothing, and the
-- secret it had before, which signs as well until a moment.
ALTER TABLE webhook_subscriptions ADD COLUMN disabled_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE webhook_subscriptions ADD COLUMN quiet_until TEXT;
ALTER TABLE webhook_subscriptions ADD COLUMN former_sealed BLOB;
ALTER TABLE webhook_subscriptions ADD COLUMN former_until TEXT;

CREATE INDEX webhook_subscriptions_former ON webhook_subscriptions (former_until)
WHERE former_until IS NOT NULL;
