"""What functions share: drawn inputs of several modules, and the laws.

A law is a statement about batches that holds for each function whose contract names it.

- `batches`: the strategies of a step's batch, and its padding;
- `access`: the access relation of a batch, which has the slots that its tokens read and write;
- `attention`: attention over caches that is computed both ways, with the metadata and without;
- `batch_laws`: the laws;
- `backends`, `builders`: attention backends and metadata builders as factories.
"""
