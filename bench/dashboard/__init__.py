"""What the dashboard costs and how soon it answers, in real Chromium, beside a blank page."""
