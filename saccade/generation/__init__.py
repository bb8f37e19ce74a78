"""One generation loop, with searches and rules as its parts."""
