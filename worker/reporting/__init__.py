"""What a rank tells: its spool, its pulse, where its seconds went."""
