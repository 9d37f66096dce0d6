"""The types that everything else speaks: requests, features, methods, benchmarks, records. No behaviour beyond them."""
