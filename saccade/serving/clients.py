"""Who asks: an API key where there are keys, else an address."""

from fastapi import Request


async def client_of(request: Request) -> str:
    """By what a client's share is counted. A check of keys leaves the key's name in `request.state.client`."""
    named = request.scope.get("state", {}).get("client")
    if named is not None:
        return str(named)
    return request.client.host if request.client is not None else ""
