"""The kit's workload as a module of its own, which a fork of what is loaded ahead runs."""

from tests.contract.loaded_workload import workload

if __name__ == "__main__":
    workload.main()
