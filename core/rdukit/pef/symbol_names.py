"""How a symbol is called: a module path joined by double underscores. Pure.

Source: SDK reference 20. That clashing names get numbers is ours; the vendor's programs have none.
"""

from collections.abc import Iterable


def flatten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Path of each tensor of a model → its symbol without the model's name: ``h.0.weight`` → ``h__0__weight``.

    Where several paths would get one name, such as parameter ``a__weight`` and module ``a``'s ``weight``, the one with
    the most modules keeps it and the others get ``…_1``, ``…_2``, whatever the order of ``paths``.
    """
    given = list(dict.fromkeys(paths))
    flat = {path: path.replace(".", "__") for path in given}
    taken = set(flat.values())
    if len(taken) == len(flat):
        return flat
    named: set[str] = set()
    for path in sorted(given, key=lambda path: (-path.count("."), path)):
        wanted, name, number = flat[path], flat[path], 0
        while name in named or (number and name in taken):
            number += 1
            name = f"{wanted}_{number}"
        named.add(name)
        flat[path] = name
    return flat
