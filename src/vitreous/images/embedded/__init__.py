"""Images that come with the package: nothing to fetch, nobody's photographs."""
