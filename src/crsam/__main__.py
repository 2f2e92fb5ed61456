"""``python -m crsam``: what ``torchrun -m`` needs."""

from crsam.cli import main

if __name__ == "__main__":
    main()
