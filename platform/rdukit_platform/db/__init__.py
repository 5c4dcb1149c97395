"""The platform's database: tables, transactions, migrations. It is the only durable record; every other store can be
lost.
"""
