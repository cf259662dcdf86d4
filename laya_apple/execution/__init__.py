"""Where routing and backends meet: the Laya class and its workers."""
