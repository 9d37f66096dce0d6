"""One forward pass per image, its columns cached for every method.

`store.FeatureStore` is the cache; `extract` makes a pass, `portions` lets it survive a kill, `columns` names what is
cached, `arrays` are its files; `texts` embeds prompts, `changed_images` corrupts and mixes images.
"""
