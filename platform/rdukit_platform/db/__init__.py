"""The platform's database: tables, transactions, migrations. It is the truth; every other store can be lost."""
